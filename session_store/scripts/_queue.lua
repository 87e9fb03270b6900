--@include _pool.lua
-- Who waits for slots, first come, first served among those who want the same stages. queue:<digest of the stages> holds sessions by
-- arrival in us, waiting holds them by deadline in ms, waiter:<session> says in which queue, for whom (a tenant, and perhaps one of its keys), and when it asked last.
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

local function join_queue(session, queue, owner, wait_ms)
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
  redis.call('ZADD', queue, int(math.max(NOW_US, tonumber(last[2] or '0') + 1)), session)
  redis.call('ZADD', WAITING, int(NOW + wait_ms), session)
  redis.call('HSET', waiter_key(session), 'queue', queue, 'tenant', owner.tenant, 'tenant_limit', owner.tenant_limit,
    'api_key', owner.api_key, 'api_key_limit', owner.api_key_limit)
end

-- The session's place from 0; one who does not wait comes last.
local function place(session, queue)
  return redis.call('ZRANK', queue, session) or redis.call('ZCARD', queue)
end

-- How many sessions a tenant (kind 'tenant') or a key (kind 'api_key'; '': nobody's) may still have.
local function allowance(kind, name, limit)
  return limit > 0 and name ~= '' and limit - redis.call('ZCARD', P .. ':' .. kind .. ':' .. name) or math.huge
end

-- Who came before and would take a slot: in all, of the same tenant, and with the same key. Not the dead, and nobody whose tenant or key
-- has enough without it.
local function ahead(session, queue, owner)
  local all, of_tenant, of_key, tenants, keys = 0, 0, 0, {}, {}
  local rank = place(session, queue)
  for _, other in ipairs(rank > 0 and redis.call('ZRANGE', queue, 0, rank - 1) or {}) do
    local waiter = redis.call('HMGET', waiter_key(other), 'tenant', 'tenant_limit', 'api_key', 'api_key_limit', 'seen_ms')
    local tenant, api_key = waiter[1], waiter[3] or ''
    if waiter[5] and NOW - tonumber(waiter[5]) <= LIMITS.waiter_ttl_ms then
      tenants[tenant] = tenants[tenant] or allowance('tenant', tenant, tonumber(waiter[2]))
      keys[api_key] = keys[api_key] or allowance('api_key', api_key, tonumber(waiter[4] or '0'))
      if tenants[tenant] > 0 and keys[api_key] > 0 then
        tenants[tenant], keys[api_key] = tenants[tenant] - 1, keys[api_key] - 1
        all = all + 1
        of_tenant = of_tenant + (tenant == owner.tenant and 1 or 0)
        of_key = of_key + (api_key == owner.api_key and 1 or 0)
      end
    end
  end
  return all, of_tenant, of_key
end
