--@include _record.lua
-- ARGV: grace ms. {'live' | 'expired' | 'closed' | 'missing', tenant, placements}, judged now; nothing changes.
local record = redis.call('HMGET', REC, 'state', 'tenant', 'placements')
if not record[1] then
  return {'missing', '', ''}
end
local status = 'live'
if record[1] == 'closed' then
  status = 'closed'
elseif expiry(tonumber(ARGV[1])) ~= '' then
  status = 'expired'
end
return {status, record[2], record[3]}
