--@include _record.lua
-- ARGV: closed record TTL, grace ms. Ends a session whose deadline passed. Answers the reason, to exactly one caller, else ''.
local reason = expiry(tonumber(ARGV[2]))
if reason ~= '' then
  end_session(reason, ARGV[1])
end
return reason
