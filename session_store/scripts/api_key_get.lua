-- KEYS[1]: common prefix of the keys. ARGV: 'id' or 'digest', and which. The key in JSON, or nil.
local id = ARGV[2]
if ARGV[1] == 'digest' then
  id = redis.call('HGET', KEYS[1] .. ':by_digest', id)
end
return id and redis.call('HGET', KEYS[1] .. ':by_id', id)
