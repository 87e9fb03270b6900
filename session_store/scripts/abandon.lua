--@include _queue.lua
-- ARGV: limits, session, stages in JSON. Who asked went away: it waits no more, and what it reserved and did not confirm is free.
local session, freed = ARGV[2], false
leave_queue(session)
for _, stage in ipairs(cjson.decode(ARGV[3])) do
  local plan = redis.call('HMGET', session_key(session), 'replica:' .. stage, 'state:' .. stage)
  if plan[1] and plan[2] == 'reserved' then
    free(session, stage, plan[1])
    freed = true
  end
end
if freed and #planned(session) == 0 then
  forget(session)
end
return 1
