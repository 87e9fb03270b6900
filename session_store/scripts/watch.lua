--@include _pool.lua
-- ARGV: limits, session, ms. Its record is to be looked at by then, unless that is settled already.
redis.call('ZADD', P .. ':deadlines', 'NX', int(NOW + tonumber(ARGV[3])), ARGV[2])
keep(P .. ':deadlines')
return 1
