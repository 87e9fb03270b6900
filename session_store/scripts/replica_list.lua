--@include _pool.lua
-- ARGV: limits. Live replicas: {id, service, address, draining, ms left, {stage, slots, kv_bytes, kv_per_session, model, used}...}.
local answer = {}
drop_dead_replicas()
for _, replica in ipairs(redis.call('ZRANGE', P .. ':replicas', 0, -1)) do
  local key = P .. ':replica:' .. replica
  local info = redis.call('HMGET', key, 'service', 'address', 'draining')
  local row = {replica, info[1], info[2], info[3], int(tonumber(redis.call('ZSCORE', P .. ':replicas', replica)) - NOW)}
  for _, stage in ipairs(offered(replica)) do
    local offer = redis.call('HMGET', key, 'slots:' .. stage, 'kv_bytes:' .. stage, 'kv_per_session:' .. stage, 'model:' .. stage)
    row[#row + 1] = {stage, offer[1], offer[2], offer[3], offer[4], redis.call('ZCARD', slots_key(replica, stage))}
  end
  answer[#answer + 1] = row
end
return answer
