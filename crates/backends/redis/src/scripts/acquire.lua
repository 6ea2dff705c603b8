-- Acquires a lock exclusively, or joins its queue.
-- KEYS: 1 to 5 of parts/keys.lua. ARGV: 1 the value's beginning, up to its token, 2 its end, after `since`, 3 ms for which
-- the key lives, 4 options: the letters `t` (draw a token), `w` (wait), `f` (first come, first served), then the ttl in ms.
-- Returns the token (0 without tokens), or a list that begins with a word.
-- include time
-- include value

-- Fast path: SET NX PX, as other Redis lock clients do it, in one step with the token and the check of the queue. The
-- parts below are only defined if it fails.
if call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) == 0 then
  local value, token = granted_value()
  call('SET', KEYS[1], value, 'NX', 'PX', ARGV[3])
  return token
end

-- include request
-- include conflict
-- include wait

-- The request's end arrived before it: nothing may hold for it any more (P7).
if call('EXISTS', gone) == 1 then return {'over'} end

local kind = call('TYPE', KEYS[1]).ok
if kind ~= 'string' and kind ~= 'none' then return {'type', kind} end
local found, left
if kind == 'string' then
  found, left = call('GET', KEYS[1]), call('PTTL', KEYS[1])
  if string.sub(found, 1, #mine) == mine then
    -- A repeat: the first grant again (P7), unless only what stays shut behind it is left.
    local state, token = string.match(found, '^1:(%a+):(%d+)', #mine + 1)
    if state == 'revoked' then return {'revoked'} end
    if state == 'held' and left > px - ttl then return tonumber(token) end
  end
end
local there = found
found = conflicting(found, id)
if not found then left = nil end

local head, record, till = first()
if not found and (not fair or not head or head == id) then
  if there then call('DEL', KEYS[1]) end
  local value, token = granted_value()
  call('SET', KEYS[1], value, 'NX', 'PX', ARGV[3])
  if leave(id) then head, record = first() end
  -- The next one now knows until when to wait.
  if head then wake(head, record, math.min(px + 5, 1000)) end
  return token
end
return wait_or_fail('exclusive', found, left or -1, head, record, till)
