--@include _record.lua
-- ARGV: key TTL, attachment, holder. The client has the newest token: the others are revoked. Answers 1 while the lease is the record's.
if authority(ARGV[2], ARGV[3]) ~= 'ok' then
  return 0
end
redis.call('HDEL', REC, 'token_previous')
keep_all(ARGV[1])
return 1
