-- The request for a hold. ARGV: 1, 3 and 4 of acquire.lua.
local id = string.sub(ARGV[1], 12, -9)
local mine = 'lockkeeper:' .. id .. ':'
local letters, ttl = string.match(ARGV[4], '^(%a*)(%d+)$')
local waits = string.find(letters, 'w', 1, true)
local fair = string.find(letters, 'f', 1, true)
local px = tonumber(ARGV[3])
ttl = tonumber(ttl)
