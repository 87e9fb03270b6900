--@include _clock.lua
-- KEYS[1]: the secret's. ARGV: payload, ms to live. Answers when it expires, in ms.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return int(NOW + tonumber(ARGV[2]))
