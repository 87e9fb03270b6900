--@include _record.lua
-- ARGV: key TTL, attachment, holder, lease TTL, journal age, journal bytes, grace ms, whether the client was heard since the last time.
-- Answers {'ok', due ms}, or {'idle', due ms} when it is the holder's but was silent for too long; {'missing'}, {'closed', reason}
-- (by whoever reaped it, too), {'forgotten'} or {'stale'}. A session that is closing gets no more time.
local status = authority(ARGV[2], ARGV[3])
if status ~= 'ok' and status ~= 'closing' then
  local record = redis.call('HMGET', REC, 'state', 'reason')
  return {status == 'stale' and record[1] == 'closing' and 'closed' or status, record[2] or ''}
end
local record = redis.call('HMGET', REC, 'journal_first', 'journal_last', 'journal_bytes', 'idle_ms', 'idle_deadline_ms')
local first, bytes = trim(tonumber(record[1]), tonumber(record[2]), tonumber(record[3]), tonumber(ARGV[5]), tonumber(ARGV[6]), 0)
redis.call('HSET', REC, 'journal_first', int(first), 'journal_bytes', int(bytes))
local verdict = 'ok'
if status == 'ok' then
  redis.call('HSET', REC, 'lease_deadline_ms', int(NOW + tonumber(ARGV[4])))
  if ARGV[8] == '1' and tonumber(record[4]) > 0 then
    redis.call('HSET', REC, 'idle_deadline_ms', int(NOW + tonumber(record[4])))
  elseif record[5] and NOW >= tonumber(record[5]) then
    verdict = 'idle'
  end
end
keep_all(ARGV[1])
return {verdict, due(tonumber(ARGV[7]))}
