--@include _pool.lua
-- ARGV: limits, gateway.
redis.call('ZREM', P .. ':gateways', ARGV[2])
redis.call('HDEL', P .. ':gateway_addresses', ARGV[2])
return 1
