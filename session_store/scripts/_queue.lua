--@include _pool.lua
-- Who waits for slots, first come, first served among those who want the same stages. queue:<digest of the stages> holds sessions by
-- arrival in us, waiting holds them by deadline in ms, waiter:<session> says in which queue, for which tenant, and when it asked last.
local WAITING = P .. ':waiting'

local function waiter_key(session)
  return P .. ':waiter:' .. session
end

local function queue_key(stages)
  local names = {unpack(stages)}
  table.sort(names)
  return P .. ':queue:' .. redis.sha1hex(table.concat(names, ' '))
end

local function leave_queue(session)
  local queue = redis.call('HGET', waiter_key(session), 'queue')
  if queue then
    redis.call('ZREM', queue, session)
    redis.call('ZREM', WAITING, session)
    redis.call('DEL', waiter_key(session))
  end
end

-- One who asks now is judged at its own deadline by what is free now.
local function drop_late_waiters(asking)
  for _, session in ipairs(redis.call('ZRANGEBYSCORE', WAITING, '-inf', int(NOW))) do
    if session ~= asking then
      leave_queue(session)
    end
  end
end

local function join_queue(session, queue, tenant, tenant_limit, wait_ms)
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
  redis.call('ZADD', queue, int(math.max(NOW_US, tonumber(last[2] or '0') + 1)), session)
  redis.call('ZADD', WAITING, int(NOW + wait_ms), session)
  redis.call('HSET', waiter_key(session), 'queue', queue, 'tenant', tenant, 'tenant_limit', tenant_limit)
end

-- The session's place from 0; one who does not wait comes last.
local function place(session, queue)
  return redis.call('ZRANK', queue, session) or redis.call('ZCARD', queue)
end

-- How many sessions the tenant may still have.
local function allowance(tenant, limit)
  return limit > 0 and limit - redis.call('ZCARD', P .. ':tenant:' .. tenant) or math.huge
end

-- Who came before and would take a slot: in all, and of the same tenant. Not the dead, and nobody whose tenant has enough without it.
local function ahead(session, queue, tenant)
  local all, own, left = 0, 0, {}
  local rank = place(session, queue)
  for _, other in ipairs(rank > 0 and redis.call('ZRANGE', queue, 0, rank - 1) or {}) do
    local waiter = redis.call('HMGET', waiter_key(other), 'tenant', 'tenant_limit', 'seen_ms')
    local name, alive = waiter[1], waiter[3] and NOW - tonumber(waiter[3]) <= LIMITS.waiter_ttl_ms
    if alive then
      left[name] = left[name] or allowance(name, tonumber(waiter[2]))
      if left[name] > 0 then
        left[name] = left[name] - 1
        all, own = all + 1, own + (name == tenant and 1 or 0)
      end
    end
  end
  return all, own
end
