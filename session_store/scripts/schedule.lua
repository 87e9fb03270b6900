--@include _pool.lua
-- ARGV: limits, session, the ms at which its record is to be looked at; 0: it is over.
if ARGV[3] == '0' then
  redis.call('ZREM', P .. ':deadlines', ARGV[2])
else
  redis.call('ZADD', P .. ':deadlines', ARGV[3], ARGV[2])
  keep(P .. ':deadlines')
end
return 1
