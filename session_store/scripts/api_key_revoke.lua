-- KEYS[1]: common prefix of the keys. ARGV: id. 1, or 0 when there is no such key. It stays known, so that its sessions can be ended.
local ids = KEYS[1] .. ':by_id'
local found = redis.call('HGET', ids, ARGV[1])
if not found then
  return 0
end
local key = cjson.decode(found)
key.revoked = true
redis.call('HSET', ids, ARGV[1], cjson.encode(key))
return 1
