-- include time

-- KEYS: 1 lock, 2 queue, 3 gone, 4 counter, 5 waiters, and for permits 6 permits, 7 slots, 8 until.
local queue, gone, waiters = KEYS[2], KEYS[3], KEYS[5]
local now = time[1] * 1000 + math.floor(time[2] / 1000)
