-- Tries to hold a lock alone: SET NX PX as the whole ecosystem does it, in one step with the token and the queue.
-- Returns its token (0 without tokens), or a list that begins with a word.
local function grant()
  local token = draw()
  if not redis.call('SET', KEYS[1], value(token), 'NX', 'PX', ARGV[3]) then return nil end
  drawn(token)
  return tonumber(token)
end

-- Mostly it is free and nobody waits: that comes before what only the other cases need is even defined.
if redis.call('EXISTS', KEYS[2], KEYS[3]) == 0 then
  local token = grant()
  if token then return token end
end
