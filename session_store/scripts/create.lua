--@include _new_record.lua
-- ARGV: as in _new_record.lua. Answers {'ok', attachment}; the same holder's repeat gets the same; {'closed', reason} or {'exists'}.
local record = redis.call('HMGET', REC, 'state', 'attachment', 'holder_id', 'gateway', 'reason')
if record[1] == 'closing' or record[1] == 'closed' then
  return {'closed', record[5] or ''}
end
if record[1] then
  if record[3] == HOLDER and record[4] == GATEWAY then
    return {'ok', record[2]}
  end
  return {'exists'}
end
new_record(int(NOW_US))
return {'ok', int(NOW_US)}
