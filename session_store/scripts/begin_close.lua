--@include _record.lua
-- ARGV: key TTL, attachment, holder, reason, closing ms. Answers to exactly one caller when its clean-up is due, in ms, else 0.
if authority(ARGV[2], ARGV[3]) ~= 'ok' then
  return '0'
end
start_closing(ARGV[4], tonumber(ARGV[5]), ARGV[1])
return due(0)
