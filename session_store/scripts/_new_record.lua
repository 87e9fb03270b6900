--@include _record.lua
-- ARGV: key TTL, lease TTL, idle ms (0: never), session, gateway, holder, tenant, profile, placements, token digest.
local GATEWAY, HOLDER = ARGV[5], ARGV[6]

local function describe()
  redis.call('HSET', REC, 'session', ARGV[4], 'tenant', ARGV[7], 'profile', ARGV[8], 'placements', ARGV[9], 'token_digest', ARGV[10], 'idle_ms', ARGV[3])
end

local function new_record(attachment)
  redis.call('DEL', CKPT, JRNL, JHEAD)
  redis.call('HSET', REC, 'created_ms', int(NOW), 'journal_first', '1', 'journal_last', '0', 'journal_bytes', '0')
  describe()
  attach(attachment, HOLDER, GATEWAY, tonumber(ARGV[2]))
  redis.call('PEXPIRE', REC, ARGV[1])
end
