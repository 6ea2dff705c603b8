-- Ends a hold by its id, or leaves the queue, and wakes the next waiter.
-- KEYS: parts/keys.lua, those of permits only for a permit. ARGV: 1 the value's beginning, up to its token, 2 `f` if the queue
-- is first come, first served, 3 ms for which the lock stays closed now, 4 ms for which its key outlives its ttl, 5 ms for
-- which the end is recorded, because an attempt may still arrive; 0 if none can.
-- Returns 1: released, 2: it was revoked, 3: it left the queue, 0: nothing is known of it.

-- Fast path: a plain release without waiters. The parts below are only defined if it fails.
local call = redis.call
local simple = ARGV[3] == '0' and ARGV[4] == '0' and ARGV[5] == '0' and not KEYS[6]
if simple and call('EXISTS', KEYS[2]) == 0 then
  local found = redis.pcall('GET', KEYS[1])
  if type(found) == 'string' and string.sub(found, 1, #ARGV[1]) == ARGV[1] then
    call('DEL', KEYS[1])
    return 1
  end
end

-- include queue
-- include permits

-- What stands between `lockkeeper:` and `:1:held:`.
local id = string.sub(ARGV[1], 12, -9)
local mine = 'lockkeeper:' .. id .. ':'
local closed, extra = tonumber(ARGV[3]), tonumber(ARGV[4])
-- A server without memory allows what needs some only after a write that doesn't: this one changes nothing.
call('PEXPIRE', gone, 7200000)
if ARGV[5] ~= '0' then call('SET', gone, '', 'PX', ARGV[5]) end

local found = redis.pcall('GET', KEYS[1])
if type(found) ~= 'string' then found = nil end
local value = found
if KEYS[6] then value = marked(found) and call('HGET', KEYS[6], id) end

local ended = 0
if value and string.sub(value, 1, #mine) == mine then
  local state, rest = string.match(value, '^1:(%a+)(:.*)$', #mine + 1)
  local left = 1
  if extra > 0 then
    left = KEYS[6] and call('ZSCORE', KEYS[8], id) - now or call('PTTL', KEYS[1])
    left = left - extra
  end
  -- Once it has expired, it is not this one's to open.
  if state ~= 'closed' and left > 0 then
    ended = state == 'revoked' and 2 or 1
    if closed == 0 and KEYS[6] then
      give_back(id)
    elseif closed == 0 then
      call('DEL', KEYS[1])
    elseif KEYS[6] then
      call('HSET', KEYS[6], id, mine .. '1:closed' .. rest)
      call('ZADD', KEYS[8], now + closed, id)
      keep_permits(closed)
      settle()
    else
      call('SET', KEYS[1], mine .. '1:closed' .. rest, 'PX', closed)
    end
  end
end

if call('EXISTS', queue) == 1 then
  local left_queue = leave(id)
  if left_queue and ended == 0 then ended = 3 end
  if ended > 0 then
    local head, record, till = first()
    if head then
      if ended ~= 3 and closed == 0 and ARGV[2] == 'f' then reserve(till) end
      wake(head, record, ended == 3 and 0 or closed)
    elseif found == 'lockkeeper:reserved:1' then
      call('DEL', KEYS[1])
    end
  end
end
return ended
