--@include _pool.lua
-- ARGV: limits, gateway, then session and due ms of each. A live gateway renewed them.
redis.call('ZADD', P .. ':gateways', 'XX', int(NOW + LIMITS.gateway_ttl_ms), ARGV[2])
for i = 3, #ARGV, 2 do
  local session = ARGV[i]
  local tenant = redis.call('HGET', session_key(session), 'tenant')
  if tenant then
    redis.call('ZADD', P .. ':sessions', int(NOW), session)
    keep(session_key(session))
    keep(P .. ':tenant:' .. tenant)
  end
  redis.call('ZADD', P .. ':deadlines', ARGV[i + 1], session)
end
keep(P .. ':sessions')
keep(P .. ':deadlines')
return 1
