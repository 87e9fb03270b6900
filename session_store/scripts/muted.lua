--@include _pool.lua
-- ARGV: limits. Milliseconds for which nothing may be reaped, and Redis' time in ms.
return {int(mute_left()), int(NOW)}
