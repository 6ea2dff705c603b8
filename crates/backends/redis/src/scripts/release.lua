-- Begins finish.lua, whose KEYS and ARGV these are. Mostly a hold is simply released, and nobody waits: that comes before
-- what only the other cases need is even defined.
local call = redis.call
local simple = ARGV[3] == '0' and ARGV[4] == '0' and ARGV[5] == '0' and not KEYS[6]
if simple and call('EXISTS', KEYS[2]) == 0 then
  local found = redis.pcall('GET', KEYS[1])
  if type(found) == 'string' and string.sub(found, 1, #ARGV[1]) == ARGV[1] then
    call('DEL', KEYS[1])
    return 1
  end
end
