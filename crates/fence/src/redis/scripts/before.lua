-- The caller's own script is the body of this function: its KEYS and ARGV are its own, without the fence's.
local function work(KEYS, ARGV)
