-- What all scripts need, but not the usual cases of acquire.lua and finish.lua, which come before it.
--
-- KEYS: the first few of these: 1 lock, 2 queue, 3 gone, 4 counter, 5 waiters, 6 permits, 7 slots, 8 until. Each one costs
-- as much as a call. So a server alone is told those only which the usual case needs; in a cluster, whose keys move one
-- by one, it must be told all of them.
local queue, gone = KEYS[2], KEYS[3]
local waiters = KEYS[5] or string.sub(queue, 1, -6) .. 'waiters'
local now = time[1] * 1000 + math.floor(time[2] / 1000)
