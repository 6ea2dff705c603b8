-- include keys

-- The value of the lock's key if it conflicts with a request; nil if it does not. A reservation for the queue does not
-- (queue.lua), nor does a plain `SET` that arrived after its own end, so that nothing may hold for it (P7).
local function conflicting(found, id)
  if found == 'lockkeeper:reserved:1' then return nil end
  local late = found and string.match(found, '^lockkeeper:([^:\n]+):1:held:0:%+')
  if late and call('EXISTS', string.sub(gone, 1, -#id - 1) .. late) == 1 then return nil end
  return found
end
