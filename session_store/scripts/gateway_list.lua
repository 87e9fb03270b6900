--@include _pool.lua
-- ARGV: limits. Live gateways: id, address, ms left.
local answer = {}
for _, gateway in ipairs(redis.call('ZRANGEBYSCORE', P .. ':gateways', '(' .. int(NOW), '+inf')) do
  local deadline = tonumber(redis.call('ZSCORE', P .. ':gateways', gateway))
  answer[#answer + 1] = {gateway, redis.call('HGET', P .. ':gateway_addresses', gateway), int(deadline - NOW)}
end
return answer
