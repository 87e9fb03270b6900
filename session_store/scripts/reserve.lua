--@include _queue.lua
-- ARGV: limits, session, tenant, tenant limit (0: none), seed, stages in JSON, replicas to avoid in JSON, ms to wait (0: as begun),
-- id of the key ('': none), key limit (0: none).
-- A planned stage keeps its replica, unless that is to be avoided: then its slot there is quarantined.
-- Answers {'ok', stage, replica, address, placement, ...}; or {'missing', stage}, {'full', stage, position}, {'tenant', stage, position};
-- or {'wait', stage, position, ms left}: ask again. All stages or nothing.
local session, seed, wait_ms = ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[8])
local owner = {tenant = ARGV[3], tenant_limit = tonumber(ARGV[4]), api_key = ARGV[9] or '', api_key_limit = tonumber(ARGV[10] or '0')}
local stages, avoided = cjson.decode(ARGV[6]), {}
for _, replica in ipairs(cjson.decode(ARGV[7])) do
  avoided[replica] = true
end
local key, tenant_key, queue = session_key(session), P .. ':tenant:' .. owner.tenant, queue_key(stages)

tidy()
drop_late_waiters(session)

local function capacity(info, stage)
  local offer = redis.call('HMGET', info, 'slots:' .. stage, 'kv_bytes:' .. stage, 'kv_per_session:' .. stage)
  local slots, kv, per_session = tonumber(offer[1]), tonumber(offer[2]), tonumber(offer[3])
  if per_session > 0 then
    slots = math.min(slots, math.floor(kv / per_session))
  end
  return slots
end

-- The replica with the least load, or nil; how many slots are free on all; whether any replica offers the stage.
local function pick(stage, nth)
  local replicas, best, least, room, found = redis.call('SMEMBERS', P .. ':stage:' .. stage), {}, 1, 0, false
  table.sort(replicas)
  for _, replica in ipairs(replicas) do
    local info = P .. ':replica:' .. replica
    if not avoided[replica] and redis.call('HGET', info, 'draining') == '0' then
      found = true
      local slots, most = slots_key(replica, stage), capacity(info, stage)
      local taken = redis.call('ZCARD', slots)
      if taken < most and not redis.call('ZSCORE', slots, session) then
        room = room + most - taken
        local load = taken / most
        if load < least then
          best, least = {}, load
        end
        if load == least then
          best[#best + 1] = replica
        end
      end
    end
  end
  return best[(seed + nth * 7919) % math.max(#best, 1) + 1], room, found
end

-- Why the session gets nothing now, with the stage, or nil and the choice of each stage: {stage, replica, whether new, replica before}.
local function choose()
  local chosen, room, narrow = {}, math.huge, ''
  local known = redis.call('ZSCORE', tenant_key, session)
  local may_have = math.min(allowance('tenant', owner.tenant, owner.tenant_limit), allowance('api_key', owner.api_key, owner.api_key_limit))
  if not known and may_have <= 0 then
    return 'tenant', ''
  end
  for nth, stage in ipairs(stages) do
    local existing = redis.call('HGET', key, 'replica:' .. stage)
    if existing and not avoided[existing] then
      chosen[nth] = {stage, existing}
    else
      local replica, free_slots, found = pick(stage, nth)
      if not replica then
        return found and 'full' or 'missing', stage
      end
      chosen[nth] = {stage, replica, true, existing}
      if free_slots < room then
        room, narrow = free_slots, stage
      end
    end
  end
  -- A conversation that lost a stage does not queue behind those who have not begun.
  if not known then
    local all, of_tenant, of_key = ahead(session, queue, owner)
    if all >= room then
      return 'full', narrow
    end
    if of_tenant >= allowance('tenant', owner.tenant, owner.tenant_limit)
      or of_key >= allowance('api_key', owner.api_key, owner.api_key_limit) then
      return 'tenant', ''
    end
  end
  return nil, chosen
end

local function refuse(verdict, stage)
  local deadline = redis.call('ZSCORE', WAITING, session)
  if not deadline and wait_ms > 0 and verdict ~= 'missing' then
    join_queue(session, queue, owner, wait_ms)
    deadline = NOW + wait_ms
  end
  local position = int(place(session, queue) + 1)
  if verdict == 'missing' or not deadline or NOW >= tonumber(deadline) then
    leave_queue(session)
    return {verdict, stage, position}
  end
  redis.call('HSET', waiter_key(session), 'seen_ms', int(NOW))
  for _, name in ipairs({queue, WAITING, waiter_key(session)}) do
    keep(name)
  end
  return {'wait', stage, position, int(tonumber(deadline) - NOW)}
end

local function take(chosen)
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
  return answer
end

local verdict, found = choose()
if verdict then
  return refuse(verdict, found)
end
leave_queue(session)
local answer = take(found)
redis.call('HSET', key, 'tenant', owner.tenant)
redis.call('ZADD', tenant_key, 'NX', int(NOW), session)
if owner.api_key ~= '' then
  redis.call('HSET', key, 'api_key', owner.api_key)
  redis.call('ZADD', P .. ':api_key:' .. owner.api_key, 'NX', int(NOW), session)
  keep(P .. ':api_key:' .. owner.api_key)
end
redis.call('ZADD', P .. ':sessions', int(NOW), session)
for _, name in ipairs({key, tenant_key, P .. ':sessions', P .. ':reservations', P .. ':clock'}) do
  keep(name)
end
return answer
