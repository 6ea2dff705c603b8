-- What a lock's key says, if that is in the way; nil if it is not: what keeps a free lock for those who wait (queue.lua),
-- and what a plain `SET` made that arrived after its own end, so that nothing may hold for it (P7).
local function in_the_way(found, id)
  if found == 'lockkeeper:reserved:1' then return nil end
  local late = found and string.match(found, '^lockkeeper:([^:\n]+):1:held:0:%+')
  if late and call('EXISTS', string.sub(gone, 1, -#id - 1) .. late) == 1 then return nil end
  return found
end
