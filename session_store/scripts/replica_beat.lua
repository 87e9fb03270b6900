--@include _pool.lua
-- ARGV: limits, replica, service, address, draining, stages in JSON [{stage, slots, kv_bytes, kv_per_session, model, held}].
-- Answers the ms for which nothing is reaped, then stage, session, why, age in ms for each held session that the plan does not know as live.
local replica, service, address, draining = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local offers = cjson.decode(ARGV[6])
local answer = {}

tick()

local function report(stage, session, why, since)
  for _, value in ipairs({stage, session, why, int(NOW - since)}) do
    answer[#answer + 1] = value
  end
end

local function drop_unlisted(stage, key, held)
  for _, session in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    local skey = session_key(session)
    local plan = redis.call('HMGET', skey, 'replica:' .. stage, 'state:' .. stage)
    if held[session] then
      if plan[1] == replica then
        redis.call('HDEL', skey, 'absent:' .. stage)
      end
    elseif plan[1] ~= replica then
      redis.call('ZREM', key, session)
      redis.call('ZREM', P .. ':quarantine', replica .. ' ' .. stage .. ' ' .. session)
    elseif plan[2] == 'confirmed' then
      redis.call('HSETNX', skey, 'absent:' .. stage, int(NOW))
    end
  end
end

local function take_held(stage, key, session)
  if redis.call('HGET', session_key(session), 'replica:' .. stage) == replica then
    redis.call('ZADD', key, 'NX', int(NOW), session)
    if stale(session) then
      report(stage, session, 'stale', NOW)
    end
    return
  end
  redis.call('ZADD', key, 'NX', int(NOW), session)
  local since = redis.call('ZSCORE', P .. ':quarantine', replica .. ' ' .. stage .. ' ' .. session)
  if since then
    report(stage, session, 'quarantined', tonumber(since))
  else
    report(stage, session, 'unplanned', tonumber(redis.call('ZSCORE', key, session)))
  end
end

drop_dead_replicas()
local names, listed, fields = {}, {}, {'service', service, 'address', address, 'draining', draining}
for _, offer in ipairs(offers) do
  names[#names + 1] = offer.stage
  listed[offer.stage] = true
  for _, name in ipairs({'slots', 'kv_bytes', 'kv_per_session'}) do
    fields[#fields + 1] = name .. ':' .. offer.stage
    fields[#fields + 1] = int(offer[name])
  end
  fields[#fields + 1] = 'model:' .. offer.stage
  fields[#fields + 1] = offer.model
end
for _, stage in ipairs(offered(replica)) do
  if not listed[stage] then
    withdraw(replica, stage)
  end
end
fields[#fields + 1] = 'stages'
fields[#fields + 1] = table.concat(names, ' ')
redis.call('DEL', P .. ':replica:' .. replica)
redis.call('HSET', P .. ':replica:' .. replica, unpack(fields))
redis.call('ZADD', P .. ':replicas', int(NOW + LIMITS.replica_ttl_ms), replica)
keep(P .. ':replica:' .. replica)
keep(P .. ':replicas')

for _, offer in ipairs(offers) do
  local stage, key, held = offer.stage, slots_key(replica, offer.stage), {}
  for _, session in ipairs(offer.held) do
    held[session] = true
  end
  redis.call('SADD', P .. ':stage:' .. stage, replica)
  keep(P .. ':stage:' .. stage)
  drop_unlisted(stage, key, held)
  for _, session in ipairs(offer.held) do
    take_held(stage, key, session)
  end
  keep(key)
end
keep(P .. ':quarantine')
expire_reservations()
sweep()
table.insert(answer, 1, int(mute_left()))
return answer
