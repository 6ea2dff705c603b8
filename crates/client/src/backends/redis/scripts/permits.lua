-- The holders of permits. The lock's own key is a marker while any of them holds, so that whoever wants the lock alone
-- finds it taken, whatever client it uses; without the marker nobody holds.

-- Removes those whose time is over.
local function sweep()
  for _, over in ipairs(redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', now)) do
    redis.call('HDEL', KEYS[5], over)
    redis.call('ZREM', KEYS[6], over)
    redis.call('ZREM', KEYS[7], over)
  end
end

-- The number of permits that a marker says; nil if it is none.
local function marked(found)
  return found and tonumber(string.match(found, '^lockkeeper:permits:1:(%d+)\n'))
end

-- Everything lives for at least so many ms more.
local function keep_permits(ms)
  if redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end
  for key = 5, 7 do
    if redis.call('PTTL', KEYS[key]) < ms then redis.call('PEXPIRE', KEYS[key], ms) end
  end
end

-- Everything ends with the last of those that are left, and the marker at once with nobody.
local function settle()
  local last = redis.call('ZREVRANGE', KEYS[7], 0, 0, 'WITHSCORES')[2]
  if not last then return redis.call('DEL', KEYS[1]) end
  redis.call('PEXPIREAT', KEYS[1], last)
  for key = 5, 7 do redis.call('PEXPIREAT', KEYS[key], last) end
end

-- Takes a permit back.
local function give_back(holder)
  redis.call('HDEL', KEYS[5], holder)
  redis.call('ZREM', KEYS[6], holder)
  redis.call('ZREM', KEYS[7], holder)
  settle()
end
