--@include _pool.lua
-- ARGV: limits. Quarantined slots: 'replica stage session', age in ms.
drop_dead_replicas()
local answer, rows = {}, redis.call('ZRANGE', P .. ':quarantine', 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do
  answer[#answer + 1] = {rows[i], int(NOW - tonumber(rows[i + 1]))}
end
return answer
