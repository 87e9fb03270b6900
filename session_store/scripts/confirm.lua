--@include _pool.lua
-- ARGV: limits, session. Answers {'ok'}, or {'lost', stage} when a reservation expired or its replica went.
local session = ARGV[2]
local key = session_key(session)
tidy()
local plans = planned(session)
if #plans == 0 then
  return {'lost', ''}
end
for _, field in ipairs(redis.call('HKEYS', key)) do
  local stage = string.match(field, '^lost:(.+)$')
  if stage then
    return {'lost', stage}
  end
end
for _, plan in ipairs(plans) do
  redis.call('HSET', key, 'state:' .. plan[1], 'confirmed')
end
redis.call('ZREM', P .. ':reservations', session)
redis.call('ZADD', P .. ':sessions', int(NOW), session)
keep(key)
keep(P .. ':sessions')
return {'ok'}
