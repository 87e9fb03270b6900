--@include _pool.lua
-- ARGV: limits, session, stage. Answers 1 if the plan had the slot.
local session, stage = ARGV[2], ARGV[3]
local replica = redis.call('HGET', session_key(session), 'replica:' .. stage)
if not replica then
  return 0
end
quarantine(session, stage, replica)
if #planned(session) == 0 then
  forget(session)
end
return 1
