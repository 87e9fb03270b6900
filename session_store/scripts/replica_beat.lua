--@include _pool.lua
-- ARGV: limits, replica, service, address, draining, stages in JSON [{stage, slots, kv_bytes, kv_per_session, model, held}].
-- Answers the ms for which nothing is reaped, then stage, session, why, age in ms for each held session that the plan does not know as live.
local replica, service, address, draining = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local offers = cjson.decode(ARGV[6])
local answer = {}
-- With more slots than AT_ONCE a stage's are looked at in turn, a share at each beat: admissions wait behind a beat.
local AT_ONCE, BEATS = 64, 8

tick()

local function report(stage, session, why, since)
  for _, value in ipairs({stage, session, why, int(NOW - since)}) do
    answer[#answer + 1] = value
  end
end

local function quarantined_as(stage, session)
  return replica .. ' ' .. stage .. ' ' .. session
end

local function look_at_held(stage, key, session, plan)
  if plan[1] == replica then
    if plan[3] then
      redis.call('HDEL', session_key(session), 'absent:' .. stage)
    end
    if stale(session) then
      report(stage, session, 'stale', NOW)
    end
    return
  end
  local since = redis.call('ZSCORE', P .. ':quarantine', quarantined_as(stage, session))
  if since then
    report(stage, session, 'quarantined', tonumber(since))
  else
    report(stage, session, 'unplanned', tonumber(redis.call('ZSCORE', key, session)))
  end
end

local function look_at_unlisted(stage, key, session, plan)
  if plan[1] ~= replica then
    redis.call('ZREM', key, session)
    redis.call('ZREM', P .. ':quarantine', quarantined_as(stage, session))
  elseif plan[2] == 'confirmed' and not plan[3] then
    redis.call('HSET', session_key(session), 'absent:' .. stage, int(NOW))
  end
end

-- What is held counts at once. A slot has its turn by its session's id, so that it is looked at within BEATS whoever comes or goes.
local function reconcile(stage, key, listed, turn)
  local held, slots, byte = {}, redis.call('ZRANGE', key, 0, -1), string.byte
  for _, session in ipairs(slots) do
    held[session] = false
  end
  for _, session in ipairs(listed) do
    if held[session] == nil then
      redis.call('ZADD', key, int(NOW), session)
      slots[#slots + 1] = session
    end
    held[session] = true
  end
  local all = #slots <= AT_ONCE
  local of_replica, of_state, of_absence = 'replica:' .. stage, 'state:' .. stage, 'absent:' .. stage
  for _, session in ipairs(slots) do
    local last, before = byte(session, -1), byte(session, -2) or 0
    if all or (last + before) % BEATS == turn then
      local plan = redis.call('HMGET', session_key(session), of_replica, of_state, of_absence)
      if held[session] then
        look_at_held(stage, key, session, plan)
      else
        look_at_unlisted(stage, key, session, plan)
      end
    end
  end
end

drop_dead_replicas()
local turn = ((tonumber(redis.call('HGET', P .. ':replica:' .. replica, 'turn') or '-1')) + 1) % BEATS
local names, listed, fields = {}, {}, {'service', service, 'address', address, 'draining', draining, 'turn', turn}
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
  local stage, key = offer.stage, slots_key(replica, offer.stage)
  redis.call('SADD', P .. ':stage:' .. stage, replica)
  keep(P .. ':stage:' .. stage)
  reconcile(stage, key, offer.held, turn)
  keep(key)
end
keep(P .. ':quarantine')
expire_reservations()
sweep()
table.insert(answer, 1, int(mute_left()))
return answer
