-- Acquires the lowest free one of N permits, or joins the queue.
-- KEYS: parts/keys.lua, all of them. ARGV: 1 to 4 as of acquire.lua, 5 N (0: that of the holders), 6 the owner.
-- Returns a list that begins with a word.
-- include value
-- include request
-- include conflict
-- include wait
-- include permits

local requested = tonumber(ARGV[5])
if call('EXISTS', gone) == 1 then return {'over'} end
local kind = call('TYPE', KEYS[1]).ok
if kind ~= 'string' and kind ~= 'none' then return {'type', kind} end
local found = kind == 'string' and call('GET', KEYS[1]) or nil
local limit = marked(found)
if not limit then found = conflicting(found, id) end
if limit then sweep() end
if limit and call('ZCARD', KEYS[7]) == 0 then
  -- Nobody is left: the marker is about to end.
  call('DEL', KEYS[1])
  found, limit = nil, nil
end
if not limit then call('DEL', KEYS[6], KEYS[7], KEYS[8]) end

local held = limit and call('HGET', KEYS[6], id)
if held then
  local state, token = string.match(held, '^1:(%a+):(%d+)', #mine + 1)
  local left = call('ZSCORE', KEYS[8], id) - now
  if state == 'revoked' then return {'revoked'} end
  if state == 'held' and left > px - ttl then
    return {'granted', token, tonumber(call('ZSCORE', KEYS[7], id)), limit}
  end
end

local head, record, till = first()
-- All requests for a name at the same time must have the same number (L3).
local in_use = limit or (record and tonumber(string.match(record, '^%d+:permit%-(%d+):')))
if in_use and requested > 0 and requested ~= in_use then return {'limit', in_use} end
if not in_use and requested == 0 then return {'no limit'} end
local of = in_use or requested

local count = limit and call('ZCARD', KEYS[7]) or 0
if (limit or not found) and count < of and (not fair or not head or head == id) then
  -- The slots below `low` are taken; the lowest free one is at `high` or below.
  local low, high = 0, count
  while low < high do
    local middle = math.floor((low + high) / 2)
    if call('ZCOUNT', KEYS[7], 0, middle) == middle + 1 then low = middle + 1 else high = middle end
  end
  local value, token = granted_value()
  call('HSET', KEYS[6], id, value)
  call('ZADD', KEYS[7], low, id)
  call('ZADD', KEYS[8], now + px, id)
  -- What is there and in nobody's way must not lend its ttl to the marker.
  if not limit then call('DEL', KEYS[1]) end
  call('SET', KEYS[1], 'lockkeeper:permits:1:' .. of .. '\n' .. ARGV[6], 'KEEPTTL')
  keep_permits(px)
  if leave(id) then head, record = first() end
  -- There may be a permit for the next one as well.
  if head then wake(head, record, 0) end
  return {'granted', token, low, of}
end

local left = call('PTTL', KEYS[1])
if limit then
  local soonest = call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')[2]
  if soonest then left = soonest - now end
end
return wait_or_fail('permit-' .. of, found, left, head, record, till)
