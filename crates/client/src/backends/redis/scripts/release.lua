-- Begins finish.lua, whose KEYS and ARGV these are. Mostly a hold is alone and nobody waits: that comes before what only
-- the other cases need is even defined.
local call = redis.call
if not ARGV[3] and not KEYS[6] and call('EXISTS', KEYS[2]) == 0 then
  local found = redis.pcall('GET', KEYS[1])
  if type(found) == 'string' and string.find(found, ARGV[1], 1, true) == 1 then
    call('DEL', KEYS[1])
    return 1
  end
end
