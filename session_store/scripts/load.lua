--@include _record.lua
-- ARGV: the number after which journal entries are wanted. {record, checkpoint, heads, payloads}, or {} when there is no record.
local record = redis.call('HGETALL', REC)
if #record == 0 then
  return {}
end
local heads, payloads = entries_above(tonumber(ARGV[1]))
return {record, redis.call('HGETALL', CKPT), heads, payloads}
