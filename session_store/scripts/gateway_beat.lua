--@include _pool.lua
-- ARGV: limits, gateway, address. Forgets the gateways whose beat stopped.
tick()
for _, gateway in ipairs(redis.call('ZRANGEBYSCORE', P .. ':gateways', '-inf', int(NOW))) do
  redis.call('HDEL', P .. ':gateway_addresses', gateway)
  redis.call('ZREM', P .. ':gateways', gateway)
end
redis.call('ZADD', P .. ':gateways', int(NOW + LIMITS.gateway_ttl_ms), ARGV[2])
redis.call('HSET', P .. ':gateway_addresses', ARGV[2], ARGV[3])
keep(P .. ':gateways')
keep(P .. ':gateway_addresses')
return 1
