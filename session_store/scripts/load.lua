--@include _record.lua
-- ARGV: the number after which journal entries are wanted. {record, checkpoint, heads, payloads}, or {} when there is no record.
local record = redis.call('HGETALL', REC)
if #record == 0 then
  return {}
end
local first = tonumber(redis.call('HGET', REC, 'journal_first') or '1')
local from = math.max(0, tonumber(ARGV[1]) + 1 - first)
return {record, redis.call('HGETALL', CKPT), redis.call('LRANGE', JHEAD, from, -1), redis.call('LRANGE', JRNL, from, -1)}
