--@include _clock.lua
-- The deployment's keys: KEYS[1] is their common prefix, ARGV[1] the limits in JSON. A slot is a member of
-- slots:<replica>:<stage>; it is the plan's if the session's hash names that replica for the stage, else only held or quarantined.
local P = KEYS[1]
local LIMITS = cjson.decode(ARGV[1])

local function keep(key)
  redis.call('PEXPIRE', key, LIMITS.key_ttl_ms)
end

local function slots_key(replica, stage)
  return P .. ':slots:' .. replica .. ':' .. stage
end

local function session_key(session)
  return P .. ':session:' .. session
end

local function planned(session)
  local stages, fields = {}, redis.call('HGETALL', session_key(session))
  for i = 1, #fields, 2 do
    local stage = string.match(fields[i], '^replica:(.+)$')
    if stage then
      stages[#stages + 1] = {stage, fields[i + 1]}
    end
  end
  table.sort(stages, function(a, b) return a[1] < b[1] end)
  return stages
end

local function forget(session)
  local key = session_key(session)
  local owner = redis.call('HMGET', key, 'tenant', 'api_key')
  if owner[1] then
    redis.call('ZREM', P .. ':tenant:' .. owner[1], session)
  end
  if owner[2] then
    redis.call('ZREM', P .. ':api_key:' .. owner[2], session)
  end
  redis.call('ZREM', P .. ':sessions', session)
  redis.call('ZREM', P .. ':reservations', session)
  redis.call('DEL', key)
end

local function unplan(session, stage)
  redis.call('HDEL', session_key(session), 'replica:' .. stage, 'state:' .. stage, 'absent:' .. stage)
end

local function free(session, stage, replica)
  redis.call('ZREM', slots_key(replica, stage), session)
  unplan(session, stage)
end

-- The slot stays taken, but the plan has it no more: the replica's own beat frees it.
local function quarantine(session, stage, replica)
  redis.call('ZADD', P .. ':quarantine', int(NOW), replica .. ' ' .. stage .. ' ' .. session)
  keep(P .. ':quarantine')
  unplan(session, stage)
end

-- A reserved slot that went before it was confirmed leaves a mark, so that confirm refuses.
local function lose(session, stage)
  local key = session_key(session)
  if redis.call('HGET', key, 'state:' .. stage) == 'reserved' then
    redis.call('HSET', key, 'lost:' .. stage, '1')
  end
end

local function expire_reservations()
  for _, session in ipairs(redis.call('ZRANGEBYSCORE', P .. ':reservations', '-inf', int(NOW))) do
    local kept = false
    for _, plan in ipairs(planned(session)) do
      if redis.call('HGET', session_key(session), 'state:' .. plan[1]) == 'reserved' then
        lose(session, plan[1])
        free(session, plan[1], plan[2])
      else
        kept = true
      end
    end
    redis.call('ZREM', P .. ':reservations', session)
    if not kept then
      forget(session)
    end
  end
end

local function offered(replica)
  local names = redis.call('HGET', P .. ':replica:' .. replica, 'stages')
  local stages = {}
  for stage in string.gmatch(names or '', '%S+') do
    stages[#stages + 1] = stage
  end
  return stages
end

local function withdraw(replica, stage)
  local key = slots_key(replica, stage)
  for _, session in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    if redis.call('HGET', session_key(session), 'replica:' .. stage) == replica then
      lose(session, stage)
      unplan(session, stage)
    end
    redis.call('ZREM', P .. ':quarantine', replica .. ' ' .. stage .. ' ' .. session)
  end
  redis.call('DEL', key)
  redis.call('SREM', P .. ':stage:' .. stage, replica)
end

local function drop_replica(replica)
  for _, stage in ipairs(offered(replica)) do
    withdraw(replica, stage)
  end
  redis.call('DEL', P .. ':replica:' .. replica)
  redis.call('ZREM', P .. ':replicas', replica)
end

local function drop_dead_replicas()
  for _, replica in ipairs(redis.call('ZRANGEBYSCORE', P .. ':replicas', '-inf', int(NOW))) do
    drop_replica(replica)
  end
end

-- Milliseconds for which nothing may be reaped; all of mute_ms while Redis remembers no recent beat.
local function mute_left()
  local clock = redis.call('HMGET', P .. ':clock', 'seen_ms', 'muted_until_ms')
  if NOW - tonumber(clock[1] or '0') > LIMITS.silence_ms then
    return LIMITS.mute_ms
  end
  return math.max(0, tonumber(clock[2] or '0') - NOW)
end

-- Every beat says that Redis lives. After a silence, or with nothing remembered, nobody is reaped for a while.
local function tick()
  local key = P .. ':clock'
  local seen = tonumber(redis.call('HGET', key, 'seen_ms') or '0')
  if NOW - seen > LIMITS.silence_ms then
    redis.call('HSET', key, 'muted_until_ms', int(NOW + LIMITS.mute_ms))
  end
  redis.call('HSET', key, 'seen_ms', int(NOW))
  keep(key)
end

local function stale(session)
  local seen = tonumber(redis.call('ZSCORE', P .. ':sessions', session) or '0')
  return NOW - seen > LIMITS.stale_slot_ms
end

-- Slots of sessions that no gateway renews: freed once the replica does not list them either.
local function sweep()
  if mute_left() > 0 then
    return
  end
  for _, session in ipairs(redis.call('ZRANGEBYSCORE', P .. ':sessions', '-inf', '(' .. int(NOW - LIMITS.stale_slot_ms))) do
    local kept = false
    for _, plan in ipairs(planned(session)) do
      if redis.call('HEXISTS', session_key(session), 'absent:' .. plan[1]) == 1 then
        free(session, plan[1], plan[2])
      else
        kept = true
      end
    end
    if not kept then
      forget(session)
    end
  end
end

local function tidy()
  drop_dead_replicas()
  expire_reservations()
  sweep()
end
