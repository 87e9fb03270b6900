--@include _pool.lua
-- ARGV: limits, gateway, then session and due ms of each. A live gateway renewed them.
redis.call('ZADD', P .. ':gateways', 'XX', int(NOW + LIMITS.gateway_ttl_ms), ARGV[2])
for i = 3, #ARGV, 2 do
  local session = ARGV[i]
  local owner = redis.call('HMGET', session_key(session), 'tenant', 'api_key')
  if owner[1] then
    redis.call('ZADD', P .. ':sessions', int(NOW), session)
    keep(session_key(session))
    keep(P .. ':tenant:' .. owner[1])
    if owner[2] then
      keep(P .. ':api_key:' .. owner[2])
    end
  end
  redis.call('ZADD', P .. ':deadlines', ARGV[i + 1], session)
end
keep(P .. ':sessions')
keep(P .. ':deadlines')
return 1
