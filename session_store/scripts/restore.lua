--@include _new_record.lua
-- ARGV: as in _new_record.lua, then the attachment. Redis lost the record, or the writes that made this lease: the highest attachment wins.
-- Answers {'ok'} when it was there, {'restored'}, {'closed', reason} or {'stale'}.
local record = redis.call('HMGET', REC, 'state', 'reason')
local status = authority(ARGV[11], HOLDER)
if record[1] == 'closing' or record[1] == 'closed' then
  return {'closed', record[2] or ''}
end
if status == 'missing' then
  new_record(ARGV[11])
elseif status == 'forgotten' then
  describe()
  attach(ARGV[11], HOLDER, GATEWAY, tonumber(ARGV[2]))
  redis.call('HDEL', REC, 'token_previous')
  keep_all(ARGV[1])
end
return {(status == 'missing' or status == 'forgotten') and 'restored' or status}
