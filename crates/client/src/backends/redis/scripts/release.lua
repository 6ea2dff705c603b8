-- Begins finish.lua, whose KEYS and ARGV these are. Mostly a hold is alone and nobody waits: that comes before what only
-- the other cases need is even defined.
local id = ARGV[1]
local mine = 'lockkeeper:' .. id .. ':'
if ARGV[3] == '0' and ARGV[4] == '0' and not KEYS[5] and redis.call('EXISTS', KEYS[3]) == 0 then
  local found = redis.pcall('GET', KEYS[1])
  if type(found) == 'string' and string.find(found, mine .. '1:held:', 1, true) == 1 then
    redis.call('DEL', KEYS[1])
    return 1
  end
end
