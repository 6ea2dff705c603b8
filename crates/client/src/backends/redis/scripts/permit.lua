-- Tries to hold one of N permits, the lowest free one.
-- ARGV: as value.lua says, 6 how many there are (0: as many as are in use), 7 who asks.
local asked = tonumber(ARGV[6])
if redis.call('EXISTS', KEYS[2]) == 1 then return {'over'} end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'string' and kind ~= 'none' then return {'type', kind} end
local found = kind == 'string' and redis.call('GET', KEYS[1]) or nil
local limit = marked(found)
if not limit then found = in_the_way(found, id) end
if limit then sweep() end
if limit and redis.call('ZCARD', KEYS[6]) == 0 then
  -- Nobody is left: the marker is about to end.
  redis.call('DEL', KEYS[1])
  found, limit = nil, nil
end
if not limit then redis.call('DEL', KEYS[5], KEYS[6], KEYS[7]) end

local held = limit and redis.call('HGET', KEYS[5], id)
if held then
  local state, token = string.match(held, '^1:(%a+):(%d+)', #mine + 1)
  local left = redis.call('ZSCORE', KEYS[7], id) - now
  if state == 'revoked' then return {'revoked'} end
  if state == 'held' and left > px - ttl then
    return {'granted', token, tonumber(redis.call('ZSCORE', KEYS[6], id)), limit}
  end
end

local head, record, till = first()
-- All who use a name at the same time say the same number (L3).
local in_use = limit or (record and tonumber(string.match(record, '^%d+:permit%-(%d+):')))
if in_use and asked > 0 and asked ~= in_use then return {'limit', in_use} end
if not in_use and asked == 0 then return {'no limit'} end
local of = in_use or asked

local count = limit and redis.call('ZCARD', KEYS[6]) or 0
if (limit or not found) and count < of and (not fair or not head or head == id) then
  -- The slots below `low` are taken; the lowest free one is at `high` or below.
  local low, high = 0, count
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZCOUNT', KEYS[6], 0, middle) == middle + 1 then low = middle + 1 else high = middle end
  end
  local token = draw()
  redis.call('HSET', KEYS[5], id, value(token))
  redis.call('ZADD', KEYS[6], low, id)
  redis.call('ZADD', KEYS[7], now + px, id)
  -- What is there and in nobody's way must not lend its ttl to the marker.
  if not limit then redis.call('DEL', KEYS[1]) end
  redis.call('SET', KEYS[1], 'lockkeeper:permits:1:' .. of .. '\n' .. ARGV[7], 'KEEPTTL')
  keep_permits(px)
  drawn(token)
  if leave(id) then head, record = first() end
  -- There may be a permit for the next one as well.
  if head then tell(head, record, 0) end
  return {'granted', token, low, of}
end

local left = redis.call('PTTL', KEYS[1])
if limit then
  local soonest = redis.call('ZRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2]
  if soonest then left = soonest - now end
end
return wait_or_fail('permit-' .. of, found, left, head, record, till)
