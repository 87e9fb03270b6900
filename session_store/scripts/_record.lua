--@include _clock.lua
-- One session's keys: the record, the checkpoint's fields, the journal's payloads and, in the same order, its heads ('seq at_ms bytes head').
local REC, CKPT, JRNL, JHEAD = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function keep_all(ttl_ms)
  for i = 1, 4 do
    redis.call('PEXPIRE', KEYS[i], ttl_ms)
  end
end

-- 'ok', or why the caller may not write: 'missing', 'closed', 'stale'.
local function authority(attachment, holder)
  local record = redis.call('HMGET', REC, 'state', 'attachment', 'holder_id')
  if not record[1] then
    return 'missing'
  end
  if record[1] == 'closed' then
    return 'closed'
  end
  if record[2] ~= attachment or record[3] ~= holder then
    return 'stale'
  end
  return 'ok'
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

-- The one terminal transition: what the session said is deleted, a tombstone says why it ended.
local function end_session(reason, closed_ttl_ms)
  redis.call('HSET', REC, 'state', 'closed', 'reason', reason, 'closed_ms', int(NOW))
  redis.call('HDEL', REC, 'token_digest', 'token_previous', 'lease_deadline_ms', 'grace_deadline_ms', 'idle_deadline_ms')
  redis.call('DEL', CKPT, JRNL, JHEAD)
  redis.call('PEXPIRE', REC, closed_ttl_ms)
end

-- Why the session may be ended by anybody, or ''. A missing deadline never passes.
local function expiry(grace_ms)
  local record = redis.call('HMGET', REC, 'state', 'lease_deadline_ms', 'grace_deadline_ms', 'idle_deadline_ms')
  local function passed(field, more)
    return field and NOW >= tonumber(field) + more
  end
  if record[1] == 'detached' and passed(record[3], 0) then
    return 'disconnect_grace_expired'
  end
  if passed(record[2], grace_ms) then
    return 'lease_expired'
  end
  if passed(record[4], 0) then
    return 'idle_ttl_expired'
  end
  return ''
end
