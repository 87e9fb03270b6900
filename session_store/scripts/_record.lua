--@include _clock.lua
-- One session's keys: the record, the checkpoint's fields, the journal's payloads and, in the same order, its heads ('seq at_ms bytes head').
local REC, CKPT, JRNL, JHEAD = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function keep_all(ttl_ms)
  for i = 1, 4 do
    redis.call('PEXPIRE', KEYS[i], ttl_ms)
  end
end

-- 'ok', or why the caller may not write: 'missing', 'closed', 'closing' (under this lease), 'forgotten' (Redis lost the writes that
-- made the lease), 'stale'.
local function authority(attachment, holder)
  local record = redis.call('HMGET', REC, 'state', 'attachment', 'holder_id')
  if not record[1] then
    return 'missing'
  end
  if record[1] == 'closed' then
    return 'closed'
  end
  if tonumber(record[2]) < tonumber(attachment) then
    return 'forgotten'
  end
  if record[2] ~= attachment or record[3] ~= holder then
    return 'stale'
  end
  return record[1] == 'closing' and 'closing' or 'ok'
end

-- A generation above every one that was ever given, even if Redis lost its last writes.
local function next_attachment()
  return int(math.max(tonumber(redis.call('HGET', REC, 'attachment')) + 1, NOW_US))
end

-- The session is its holder's from now on, with a client.
local function attach(attachment, holder, gateway, lease_ttl_ms)
  redis.call('HSET', REC, 'state', 'attached', 'attachment', attachment, 'holder_id', holder, 'gateway', gateway,
    'lease_deadline_ms', int(NOW + lease_ttl_ms))
  redis.call('HDEL', REC, 'grace_deadline_ms', 'commit_number')
  local idle_ms = tonumber(redis.call('HGET', REC, 'idle_ms'))
  if idle_ms > 0 then
    redis.call('HSET', REC, 'idle_deadline_ms', int(NOW + idle_ms))
  end
end

-- Drops entries from the front that are acknowledged, too old, or too many bytes. Answers the first kept number and the bytes kept.
local function trim(first, last, bytes, max_age_ms, max_bytes, acked)
  local dropped, done = 0, false
  while not done and first + dropped <= last do
    local heads = redis.call('LRANGE', JHEAD, dropped, dropped + 15)
    done = #heads == 0
    for _, head in ipairs(heads) do
      local seq, at, size = string.match(head, '^(%d+) (%d+) (%d+) ')
      if tonumber(seq) > acked and NOW - tonumber(at) <= max_age_ms and bytes <= max_bytes then
        done = true
        break
      end
      bytes, dropped = bytes - tonumber(size), dropped + 1
    end
  end
  if dropped > 0 then
    redis.call('LTRIM', JHEAD, dropped, -1)
    redis.call('LTRIM', JRNL, dropped, -1)
  end
  return first + dropped, bytes
end

-- The journal's entries above a number: heads and payloads.
local function entries_above(seq)
  local from = math.max(0, seq + 1 - tonumber(redis.call('HGET', REC, 'journal_first')))
  return redis.call('LRANGE', JHEAD, from, -1), redis.call('LRANGE', JRNL, from, -1)
end

local function drop_rights()
  redis.call('HDEL', REC, 'token_digest', 'token_previous', 'lease_deadline_ms', 'grace_deadline_ms', 'idle_deadline_ms')
end

-- The terminal transition in two steps: nobody may resume or commit from now on, but what was said is kept until the end.
local function start_closing(reason, closing_ms, ttl_ms)
  redis.call('HSET', REC, 'state', 'closing', 'reason', reason, 'closing_deadline_ms', int(NOW + closing_ms))
  drop_rights()
  keep_all(ttl_ms)
end

-- The terminal transition, or its end: what the session said is deleted, a tombstone says why it ended. The first reason stays.
local function end_session(reason, closed_ttl_ms)
  if redis.call('HGET', REC, 'state') ~= 'closing' then
    redis.call('HSET', REC, 'reason', reason)
  end
  redis.call('HSET', REC, 'state', 'closed', 'closed_ms', int(NOW))
  drop_rights()
  redis.call('HDEL', REC, 'closing_deadline_ms')
  redis.call('DEL', CKPT, JRNL, JHEAD)
  redis.call('PEXPIRE', REC, closed_ttl_ms)
end

-- When the session may be ended by anybody, and why: the deadlines of its state, each {ms, reason}; the first that passed wins.
local function deadlines(grace_ms)
  local record = redis.call('HMGET', REC, 'state', 'lease_deadline_ms', 'grace_deadline_ms', 'idle_deadline_ms', 'closing_deadline_ms', 'reason')
  local all = {}
  local function add(field, more, reason)
    if field then
      all[#all + 1] = {tonumber(field) + more, reason}
    end
  end
  if record[1] == 'closing' then
    add(record[5], 0, record[6])
  elseif record[1] ~= 'closed' then
    add(record[1] == 'detached' and record[3], 0, 'disconnect_grace_expired')
    add(record[2], grace_ms, 'lease_expired')
    -- Whoever holds it hears of it at a renewal and has the grace to end it in good order.
    add(record[4], grace_ms, 'idle_ttl_expired')
  end
  return all
end

-- Why the session may be ended by anybody, or ''.
local function expiry(grace_ms)
  for _, deadline in ipairs(deadlines(grace_ms)) do
    if NOW >= deadline[1] then
      return deadline[2]
    end
  end
  return ''
end

-- The ms at which the session has to be looked at again; 0: never.
local function due(grace_ms)
  local first = nil
  for _, deadline in ipairs(deadlines(grace_ms)) do
    first = math.min(first or deadline[1], deadline[1])
  end
  return int(first or 0)
end
