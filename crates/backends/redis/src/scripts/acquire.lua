-- Tries to hold a lock alone that is not simply free (free.lua).
-- Its end arrived before it: nothing may hold for it any more (P7).
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
found = in_the_way(found, id)
if not found then left = nil end

local head, record, till = first()
if not found and (not fair or not head or head == id) then
  if there then call('DEL', KEYS[1]) end
  local value, token = hold()
  call('SET', KEYS[1], value, 'NX', 'PX', ARGV[3])
  if leave(id) then head, record = first() end
  -- The next one now knows until when to wait.
  if head then tell(head, record, math.min(px + 5, 1000)) end
  return token
end
return wait_or_fail('exclusive', found, left or -1, head, record, till)
