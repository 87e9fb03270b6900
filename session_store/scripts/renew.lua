--@include _record.lua
-- ARGV: key TTL, attachment, holder, lease TTL, journal age, journal bytes, grace ms.
-- Answers {'ok', due ms}, or {'missing'}, {'closed'}, {'forgotten'}, {'stale'}. A session that is closing gets no more time.
local status = authority(ARGV[2], ARGV[3])
if status ~= 'ok' and status ~= 'closing' then
  return {status}
end
local record = redis.call('HMGET', REC, 'journal_first', 'journal_last', 'journal_bytes')
local first, bytes = trim(tonumber(record[1]), tonumber(record[2]), tonumber(record[3]), tonumber(ARGV[5]), tonumber(ARGV[6]), 0)
redis.call('HSET', REC, 'journal_first', int(first), 'journal_bytes', int(bytes))
if status == 'ok' then
  redis.call('HSET', REC, 'lease_deadline_ms', int(NOW + tonumber(ARGV[4])))
end
keep_all(ARGV[1])
return {'ok', due(tonumber(ARGV[7]))}
