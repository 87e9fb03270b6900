--@include _record.lua
-- ARGV: key TTL, lease TTL, grace ms, tenant, digests of the token shown and of the next one, gateway, holder, the client's last seq,
-- whether a gap is accepted, whether deadlines are judged. Answers {'missing'}, {'invalid'}, {'closed', reason}, {'expired', reason}, {'bare'},
-- {'gap', first kept, last}, or {'ok', attachment, gap, due ms, record, checkpoint, heads, payloads}.
local KEPT_TOKENS = 4
local shown, after = ARGV[5], tonumber(ARGV[9])
local record = redis.call('HMGET', REC, 'state', 'tenant', 'reason', 'token_digest', 'token_previous', 'journal_first', 'journal_last')
if not record[1] then
  return {'missing'}
end
if record[2] ~= ARGV[4] then
  return {'invalid'}
end
if record[1] == 'closing' or record[1] == 'closed' then
  return {'closed', record[3] or ''}
end

-- Until one is settled every token stays valid (the one shown and the newest): any answer that carried one may have been lost.
local valid, known = {}, false
for digest in string.gmatch((record[5] or '') .. ' ' .. (record[4] or ''), '%S+') do
  known = known or digest == shown
  if digest ~= shown then
    valid[#valid + 1] = digest
  end
end
if not known then
  return {'invalid'}
end
local previous = {shown}
for nth = math.max(1, #valid - KEPT_TOKENS + 2), #valid do
  previous[#previous + 1] = valid[nth]
end

local reason = ARGV[11] == '1' and expiry(tonumber(ARGV[3])) or ''
if reason ~= '' then
  return {'expired', reason}
end
-- Nobody could go on from it: it stays with its holder, who is about to write its first checkpoint (after a wipe: to write it again).
if redis.call('HEXISTS', CKPT, 'hot') == 0 then
  return {'bare'}
end
local first, last = tonumber(record[6]), tonumber(record[7])
local gap = after < first - 1 or after > last
if gap and ARGV[10] ~= '1' then
  return {'gap', int(first), int(last)}
end

local attachment = next_attachment()
attach(attachment, ARGV[8], ARGV[7], tonumber(ARGV[2]))
redis.call('HSET', REC, 'token_digest', ARGV[6], 'token_previous', table.concat(previous, ' '))
keep_all(ARGV[1])
local heads, payloads = entries_above(after)
return {'ok', attachment, gap and 1 or 0, due(tonumber(ARGV[3])), redis.call('HGETALL', REC), redis.call('HGETALL', CKPT), heads, payloads}
