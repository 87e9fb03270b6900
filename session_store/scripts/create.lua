--@include _record.lua
-- ARGV: key TTL, lease TTL, idle ms (0: never), session, gateway, holder, tenant, profile, placements, token digest.
-- Answers {'ok', attachment}; the same holder's repeat gets the same; {'closed', reason} or {'exists'}.
local record = redis.call('HMGET', REC, 'state', 'attachment', 'holder_id', 'gateway', 'reason')
if record[1] == 'closed' then
  return {'closed', record[5] or ''}
end
if record[1] then
  if record[3] == ARGV[6] and record[4] == ARGV[5] then
    return {'ok', record[2]}
  end
  return {'exists'}
end
local idle_ms = tonumber(ARGV[3])
redis.call('DEL', CKPT, JRNL, JHEAD)
redis.call('HSET', REC,
  'session', ARGV[4], 'state', 'attached', 'attachment', int(NOW_US), 'holder_id', ARGV[6], 'gateway', ARGV[5],
  'tenant', ARGV[7], 'profile', ARGV[8], 'placements', ARGV[9], 'token_digest', ARGV[10],
  'created_ms', int(NOW), 'lease_deadline_ms', int(NOW + tonumber(ARGV[2])), 'idle_ms', ARGV[3],
  'journal_first', '1', 'journal_last', '0', 'journal_bytes', '0')
if idle_ms > 0 then
  redis.call('HSET', REC, 'idle_deadline_ms', int(NOW + idle_ms))
end
redis.call('PEXPIRE', REC, ARGV[1])
return {'ok', int(NOW_US)}
