--@include _record.lua
-- ARGV: key TTL, attachment, holder, lease TTL, journal age, journal bytes, acked seq, active, replace, first seq, hot, placements,
-- counts of entries, fields set, fields deleted, the commit's number (0: none); then head and payload of each entry, name and value of each
-- field set, names deleted.
-- Answers {'ok', first kept, last}, {'seq', next}, {'closed', reason}, {'stale'} or {'missing'}.
local status = authority(ARGV[2], ARGV[3])
if status ~= 'ok' then
  return {status, redis.call('HGET', REC, 'reason') or ''}
end
local record = redis.call('HMGET', REC, 'journal_first', 'journal_last', 'journal_bytes', 'idle_ms', 'commit_number')
local first, last, bytes = tonumber(record[1]), tonumber(record[2]), tonumber(record[3])
local first_seq, entries, sets, deletes = tonumber(ARGV[10]), tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local number = tonumber(ARGV[16])

-- Its answer was lost and it came again, or it comes after a later one of its lease: all that it would write is there.
if number > 0 and number <= tonumber(record[5] or '0') then
  return {'ok', int(first), int(last)}
end

if ARGV[9] == '1' then
  redis.call('DEL', CKPT, JRNL, JHEAD)
  first, last, bytes = first_seq, first_seq - 1, 0
elseif first_seq ~= last + 1 or (number > 0 and number ~= tonumber(record[5] or '0') + 1) then
  return {'seq', int(last + 1)}
end

local at = 17
for nth = 0, entries - 1 do
  local head, payload = ARGV[at], ARGV[at + 1]
  local size = #head + #payload
  redis.call('RPUSH', JHEAD, int(first_seq + nth) .. ' ' .. int(NOW) .. ' ' .. int(size) .. ' ' .. head)
  redis.call('RPUSH', JRNL, payload)
  bytes, at = bytes + size, at + 2
end
last = last + entries
first, bytes = trim(first, last, bytes, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]))

redis.call('HSET', CKPT, 'hot', ARGV[11])
for _ = 1, sets do
  redis.call('HSET', CKPT, 'f:' .. ARGV[at], ARGV[at + 1])
  at = at + 2
end
for nth = 0, deletes - 1 do
  redis.call('HDEL', CKPT, 'f:' .. ARGV[at + nth])
end

redis.call('HSET', REC, 'journal_first', int(first), 'journal_last', int(last), 'journal_bytes', int(bytes), 'lease_deadline_ms', int(NOW + tonumber(ARGV[4])))
if ARGV[12] ~= '' then
  redis.call('HSET', REC, 'placements', ARGV[12])
end
if number > 0 then
  redis.call('HSET', REC, 'commit_number', ARGV[16])
end
local idle_ms = tonumber(record[4])
if ARGV[8] == '1' and idle_ms > 0 then
  redis.call('HSET', REC, 'idle_deadline_ms', int(NOW + idle_ms))
end
keep_all(ARGV[1])
return {'ok', int(first), int(last)}
