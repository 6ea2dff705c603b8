-- include time

-- KEYS: 1 lock, 2 queue, 3 gone, 4 counter, 5 waiters, and for permits, all by a holder's id: 6 permits (hash, its value), 7 slots
-- (sorted by slot), 8 until (sorted by the end of its time).
local queue, gone, waiters = KEYS[2], KEYS[3], KEYS[5]
local now = time[1] * 1000 + math.floor(time[2] / 1000)
