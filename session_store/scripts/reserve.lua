--@include _pool.lua
-- ARGV: limits, session, tenant, tenant limit (0: none), seed, stages in JSON, replicas to avoid in JSON.
-- A planned stage keeps its replica, unless that is to be avoided: then its slot there is quarantined.
-- Answers {'ok', stage, replica, address, placement, ...} or {'tenant'}, {'full', stage}, {'missing', stage}: all or nothing.
local session, tenant, tenant_limit, seed = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local stages, avoided = cjson.decode(ARGV[6]), {}
for _, replica in ipairs(cjson.decode(ARGV[7])) do
  avoided[replica] = true
end
local key, tenant_key = session_key(session), P .. ':tenant:' .. tenant

tidy()

if tenant_limit > 0 and not redis.call('ZSCORE', tenant_key, session) and redis.call('ZCARD', tenant_key) >= tenant_limit then
  return {'tenant'}
end

local function capacity(info, stage)
  local offer = redis.call('HMGET', info, 'slots:' .. stage, 'kv_bytes:' .. stage, 'kv_per_session:' .. stage)
  local slots, kv, per_session = tonumber(offer[1]), tonumber(offer[2]), tonumber(offer[3])
  if per_session > 0 then
    slots = math.min(slots, math.floor(kv / per_session))
  end
  return slots
end

local function pick(stage, nth)
  local replicas, best, least, found = redis.call('SMEMBERS', P .. ':stage:' .. stage), {}, 1, false
  table.sort(replicas)
  for _, replica in ipairs(replicas) do
    local info = P .. ':replica:' .. replica
    if not avoided[replica] and redis.call('HGET', info, 'draining') == '0' then
      found = true
      local slots = slots_key(replica, stage)
      local load = redis.call('ZCARD', slots) / capacity(info, stage)
      if load < 1 and not redis.call('ZSCORE', slots, session) then
        if load < least then
          best, least = {}, load
        end
        if load == least then
          best[#best + 1] = replica
        end
      end
    end
  end
  if #best == 0 then
    return nil, found
  end
  return best[(seed + nth * 7919) % #best + 1], true
end

local chosen = {}
for nth, stage in ipairs(stages) do
  local existing = redis.call('HGET', key, 'replica:' .. stage)
  if existing and not avoided[existing] then
    chosen[nth] = {stage, existing}
  else
    local replica, found = pick(stage, nth)
    if not replica then
      return {found and 'full' or 'missing', stage}
    end
    chosen[nth] = {stage, replica, true, existing}
  end
end

local answer, reserved = {'ok'}, false
local placement = math.max(tonumber(redis.call('HGET', P .. ':clock', 'placement') or '0') + 1, NOW_US)
for _, choice in ipairs(chosen) do
  local stage, replica = choice[1], choice[2]
  if choice[3] then
    if choice[4] then
      quarantine(session, stage, choice[4])
    end
    redis.call('ZADD', slots_key(replica, stage), int(NOW), session)
    keep(slots_key(replica, stage))
    redis.call('HSET', key, 'replica:' .. stage, replica, 'state:' .. stage, 'reserved', 'placement:' .. stage, int(placement))
    redis.call('HDEL', key, 'lost:' .. stage)
    placement, reserved = placement + 1, true
  end
  local address = redis.call('HGET', P .. ':replica:' .. replica, 'address')
  for _, value in ipairs({stage, replica, address, redis.call('HGET', key, 'placement:' .. stage)}) do
    answer[#answer + 1] = value
  end
end
if reserved then
  redis.call('HSET', P .. ':clock', 'placement', int(placement - 1))
  redis.call('ZADD', P .. ':reservations', int(NOW + LIMITS.reservation_ttl_ms), session)
end
redis.call('HSET', key, 'tenant', tenant)
redis.call('ZADD', tenant_key, 'NX', int(NOW), session)
redis.call('ZADD', P .. ':sessions', int(NOW), session)
for _, name in ipairs({key, tenant_key, P .. ':sessions', P .. ':reservations', P .. ':clock'}) do
  keep(name)
end
return answer
