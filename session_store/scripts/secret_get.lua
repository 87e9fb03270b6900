-- KEYS[1]: the secret's. Its payload, or nil.
return redis.call('GET', KEYS[1])
