-- KEYS[1]: common prefix of the keys. ARGV: id, digest, the key in JSON. Answers {'ok'}, or {'taken', id} when another key has this digest.
local ids, digests = KEYS[1] .. ':by_id', KEYS[1] .. ':by_digest'
local owner = redis.call('HGET', digests, ARGV[2])
if owner and owner ~= ARGV[1] then
  return {'taken', owner}
end
local before = redis.call('HGET', ids, ARGV[1])
if before then
  redis.call('HDEL', digests, cjson.decode(before).sha256)
end
redis.call('HSET', ids, ARGV[1], ARGV[3])
redis.call('HSET', digests, ARGV[2], ARGV[1])
return {'ok'}
