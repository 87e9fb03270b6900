--@include _pool.lua
-- ARGV: limits. Milliseconds for which nothing may be reaped.
return mute_left()
