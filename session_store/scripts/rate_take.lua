--@include _clock.lua
-- KEYS[1]: what happened lately, by us. ARGV: most in a window, ms of the window, a name for this one.
-- 0 when there was room and it is taken, else the ms until there is room.
local key, most, window_us = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]) * 1000
redis.call('ZREMRANGEBYSCORE', key, '-inf', int(NOW_US - window_us))
-- the clock was set back: what is yet to come would shut out for as long
redis.call('ZREMRANGEBYSCORE', key, '(' .. int(NOW_US + window_us), '+inf')
if redis.call('ZCARD', key) >= most then
  local nth = redis.call('ZRANGE', key, -most, -most, 'WITHSCORES')
  return int(math.max(1, math.ceil((tonumber(nth[2]) + window_us - NOW_US) / 1000)))
end
redis.call('ZADD', key, int(NOW_US), ARGV[3])
redis.call('PEXPIRE', key, ARGV[2])
return '0'
