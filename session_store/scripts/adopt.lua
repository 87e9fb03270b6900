--@include _pool.lua
-- ARGV: limits, session, tenant, stage, replica, placement. A held slot becomes the plan's again: its record lives, the pool had lost it or
-- planned it elsewhere in vain.
local session, tenant, stage, replica = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key = session_key(session)
if redis.call('HEXISTS', key, 'replica:' .. stage) == 1 or not redis.call('ZSCORE', slots_key(replica, stage), session) then
  return 0
end
redis.call('HSET', key, 'tenant', tenant, 'replica:' .. stage, replica, 'state:' .. stage, 'confirmed', 'placement:' .. stage, ARGV[6])
redis.call('HDEL', key, 'lost:' .. stage)
redis.call('ZREM', P .. ':quarantine', replica .. ' ' .. stage .. ' ' .. session)
redis.call('ZADD', P .. ':tenant:' .. tenant, 'NX', int(NOW), session)
redis.call('ZADD', P .. ':sessions', int(NOW), session)
for _, name in ipairs({key, P .. ':tenant:' .. tenant, P .. ':sessions'}) do
  keep(name)
end
return 1
