--@include _record.lua
-- ARGV: closed record TTL, attachment, holder, reason. Answers 1 for exactly one caller.
local status = authority(ARGV[2], ARGV[3])
if status ~= 'ok' and status ~= 'closing' then
  return 0
end
end_session(ARGV[4], ARGV[1])
return 1
