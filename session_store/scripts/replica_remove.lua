--@include _pool.lua
-- ARGV: limits, replica. The replica goes with all its slots.
drop_replica(ARGV[2])
return 1
