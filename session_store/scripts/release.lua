--@include _pool.lua
-- ARGV: limits, session, stages in JSON ([]: all). Answers how many slots were freed now.
local session, only, freed = ARGV[2], {}, 0
local stages = cjson.decode(ARGV[3])
for _, stage in ipairs(stages) do
  only[stage] = true
  redis.call('HDEL', session_key(session), 'lost:' .. stage)
end
for _, plan in ipairs(planned(session)) do
  if #stages == 0 or only[plan[1]] then
    free(session, plan[1], plan[2])
    freed = freed + 1
  end
end
if #planned(session) == 0 then
  forget(session)
end
tidy()
return freed
