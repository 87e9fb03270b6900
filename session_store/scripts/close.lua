--@include _record.lua
-- ARGV: closed record TTL, attachment, holder, reason. Answers 1 for exactly one caller.
if authority(ARGV[2], ARGV[3]) ~= 'ok' then
  return 0
end
end_session(ARGV[4], ARGV[1])
return 1
