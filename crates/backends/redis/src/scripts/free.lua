-- Tries to hold a lock alone: SET NX PX as the whole ecosystem does it, in one step with the token and the queue.
-- Returns its token (0 without tokens), or a list that begins with a word.
--
-- Mostly it is free, nobody waits, and its end did not arrive before it (P7): that comes before what only the other cases
-- need is even defined.
if call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) == 0 then
  local value, token = hold()
  call('SET', KEYS[1], value, 'NX', 'PX', ARGV[3])
  return token
end
