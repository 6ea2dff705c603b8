-- Begins the scripts that grant: who asks, and what a hold's value says (layout.rs).
-- KEYS: 1 lock, 2 gone, 3 queue, 4 waiters, with permits 5 permits, 6 slots, 7 until; with tokens last the counter.
-- ARGV: 1 id, 2 what follows `since` in the value, 3 ms for which the key lives, 4 ms of ttl,
--       5 `w`: wait, `f`: first come, first served, `t`: draw a token.
local id, px, ttl = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local waits = string.find(ARGV[5], 'w', 1, true)
local fair = string.find(ARGV[5], 'f', 1, true)
local counter = string.find(ARGV[5], 't', 1, true) and KEYS[#KEYS]
local mine = 'lockkeeper:' .. id .. ':'

-- The next token: above the last one, and above every token of a server that forgot it, as long as its clock is not
-- set back: microseconds since 2026. Nothing is written before it is granted.
local function draw()
  if not counter then return '0' end
  local last = tonumber(redis.call('GET', counter) or 0)
  return string.format('%.0f', math.max(last + 1, (time[1] - 1767225600) * 1000000 + time[2]))
end

-- Remembers a token that was granted: for 30 days, after which the clock alone is far enough ahead.
local function drawn(token)
  if counter then redis.call('SET', counter, token, 'PX', 2592000000) end
end

local function value(token)
  return mine .. '1:held:' .. token .. ':' .. time[1] .. string.format('%06d', time[2]) .. ARGV[2]
end
