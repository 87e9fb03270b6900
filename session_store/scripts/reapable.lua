--@include _pool.lua
-- ARGV: limits, how many. Sessions whose record is to be looked at, the longest due first.
return redis.call('ZRANGEBYSCORE', P .. ':deadlines', '-inf', int(NOW), 'LIMIT', 0, ARGV[2])
