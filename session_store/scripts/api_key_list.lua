-- KEYS[1]: common prefix of the keys. Every key in JSON.
return redis.call('HVALS', KEYS[1] .. ':by_id')
