-- Ends a hold by its id, or leaves the queue, and wakes whoever is next.
-- KEYS: as value.lua says, without the counter. ARGV: 1 id, 2 ms for which the lock stays shut now, 3 ms for which its
-- key outlives its ttl, 4 ms for which an attempt of it may still arrive, 0 if none can.
-- 5 `f`: the queue is first come, first served.
-- Returns 1: released, 2: it was under a break, 3: it left the queue, 0: nothing is known of it.
local closed, extra = tonumber(ARGV[2]), tonumber(ARGV[3])
-- A server without memory allows what needs some only after a write that doesn't: this one changes nothing.
redis.call('PEXPIRE', KEYS[2], 7200000)
if ARGV[4] ~= '0' then redis.call('SET', KEYS[2], '', 'PX', ARGV[4]) end

local found = redis.pcall('GET', KEYS[1])
if type(found) ~= 'string' then found = nil end
local value = found
if KEYS[5] then value = marked(found) and redis.call('HGET', KEYS[5], id) end

local ended = 0
if value and string.sub(value, 1, #mine) == mine then
  local state, rest = string.match(value, '^1:(%a+)(:.*)$', #mine + 1)
  local left = 1
  if extra > 0 then
    left = KEYS[5] and redis.call('ZSCORE', KEYS[7], id) - now or redis.call('PTTL', KEYS[1])
    left = left - extra
  end
  -- Once it has expired, it is not this one's to open.
  if state ~= 'closed' and left > 0 then
    ended = state == 'revoked' and 2 or 1
    if closed == 0 and KEYS[5] then
      give_back(id)
    elseif closed == 0 then
      redis.call('DEL', KEYS[1])
    elseif KEYS[5] then
      redis.call('HSET', KEYS[5], id, mine .. '1:closed' .. rest)
      redis.call('ZADD', KEYS[7], now + closed, id)
      keep_permits(closed)
      settle()
    else
      redis.call('SET', KEYS[1], mine .. '1:closed' .. rest, 'PX', closed)
    end
  end
end

if redis.call('EXISTS', KEYS[3]) == 1 then
  local left_queue = leave(id)
  if left_queue and ended == 0 then ended = 3 end
  if ended > 0 then
    local head, record, till = first()
    if head then
      if ended ~= 3 and closed == 0 and ARGV[5] == 'f' then keep_free(till) end
      tell(head, record, ended == 3 and 0 or closed)
    elseif found == 'lockkeeper:reserved:1' then
      redis.call('DEL', KEYS[1])
    end
  end
end
return ended
