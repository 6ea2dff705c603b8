-- Extends a hold or a place in the queue by a full ttl, found by its id. Never creates one: a renewal that recreated a
-- lost key would exclude the client that has the lock by then.
-- KEYS: parts/keys.lua, those of permits only for a permit. ARGV: 1 id, 2 ms for which the key lives, 3 ms of ttl.
-- Returns 1: kept, 0: gone, 2: revoked, and not renewed.
-- include permits

local id, px, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local mine = 'lockkeeper:' .. id .. ':'

-- A key of another type is not ours.
local found = redis.pcall('GET', KEYS[1])
if type(found) ~= 'string' then found = nil end
local value, left = found, nil
if KEYS[6] then
  value = marked(found) and call('HGET', KEYS[6], id)
  left = value and call('ZSCORE', KEYS[8], id) - now
elseif found then
  left = call('PTTL', KEYS[1])
end

if value and string.sub(value, 1, #mine) == mine then
  local state = string.match(value, '^1:(%a+):', #mine + 1)
  -- It is over, and what is left of the key only keeps the lock shut.
  if state == 'closed' or left <= px - ttl then return 0 end
  if state == 'revoked' then return 2 end
  if KEYS[6] then
    -- A server without memory allows what makes something longer only after what doesn't.
    call('PEXPIRE', KEYS[8], math.max(px, call('PTTL', KEYS[8])))
    call('ZADD', KEYS[8], now + px, id)
    keep_permits(px)
  else
    -- Since when it holds could be seen by its key alone until now.
    local lived, rest = string.match(value, '^1:held:0:%+(%d+)(:.*)$', #mine + 1)
    -- A plain `SET` that arrived after its own end holds nothing (parts/conflict.lua), and must not look as if it did.
    if lived and call('EXISTS', gone) == 1 then return 0 end
    call('PEXPIRE', KEYS[1], px)
    if lived then
      local since = time[1] * 1000000 + time[2] - (lived - left) * 1000
      call('SET', KEYS[1], mine .. string.format('1:held:0:%.0f', since) .. rest, 'KEEPTTL')
    end
  end
  return 1
end

-- Holds of the same session must not suffer from a queue that can't be written: what can't be renewed here keeps its
-- place for as long as it has it.
local record = redis.pcall('HGET', waiters, id)
if type(record) ~= 'string' or type(redis.pcall('ZSCORE', queue, id)) ~= 'string' then return 0 end
redis.pcall('PEXPIRE', waiters, math.max(ttl, call('PTTL', waiters)))
redis.pcall('HSET', waiters, id, (now + ttl) .. string.match(record, '^%d+(.*)$'))
redis.pcall('PEXPIRE', queue, math.max(ttl, call('PTTL', queue)))
return 1
