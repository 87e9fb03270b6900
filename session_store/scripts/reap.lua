--@include _record.lua
-- ARGV: key TTL, grace ms, closing ms, gateway, holder. A takeover that closes, of a session whose deadline passed: its cleaner's, too.
-- Answers {'ok', due ms, attachment, reason, placements} to exactly one caller, or {'no', due ms}; due is 0 when the session is over.
local reason = expiry(tonumber(ARGV[2]))
if reason == '' then
  return {'no', due(tonumber(ARGV[2]))}
end
local attachment = next_attachment()
redis.call('HSET', REC, 'attachment', attachment, 'gateway', ARGV[4], 'holder_id', ARGV[5])
start_closing(reason, tonumber(ARGV[3]), ARGV[1])
return {'ok', due(0), attachment, reason, redis.call('HGET', REC, 'placements')}
