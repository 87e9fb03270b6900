-- The only clock there is.
local function now_us()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local function int(n)
  return string.format('%.0f', n)
end

local NOW_US = now_us()
local NOW = math.floor(NOW_US / 1000)
