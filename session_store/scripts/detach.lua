--@include _record.lua
-- ARGV: key TTL, attachment, holder, grace ms, lease's grace ms. The client is gone; it may come back within the grace.
-- Answers for the transition when the session is to be looked at again, in ms, else 0.
if authority(ARGV[2], ARGV[3]) ~= 'ok' or redis.call('HGET', REC, 'state') ~= 'attached' then
  return '0'
end
redis.call('HSET', REC, 'state', 'detached', 'grace_deadline_ms', int(NOW + tonumber(ARGV[4])))
keep_all(ARGV[1])
return due(tonumber(ARGV[5]))
