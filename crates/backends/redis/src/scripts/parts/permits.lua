-- include keys

-- The holders of permits. While there is one, the lock's own key is a marker, so that no client, of this library or another,
-- can hold the lock exclusively; without the marker there is no holder.

-- Removes those whose time is over.
local function sweep()
  for _, over in ipairs(call('ZRANGEBYSCORE', KEYS[8], '-inf', now)) do
    call('HDEL', KEYS[6], over)
    call('ZREM', KEYS[7], over)
    call('ZREM', KEYS[8], over)
  end
end

-- The number of permits in a marker; nil if it is no marker.
local function marked(found)
  return found and tonumber(string.match(found, '^lockkeeper:permits:1:(%d+)\n'))
end

-- Everything lives for at least so many ms more.
local function keep_permits(ms)
  if call('PTTL', KEYS[1]) < ms then call('PEXPIRE', KEYS[1], ms) end
  for key = 6, 8 do
    if call('PTTL', KEYS[key]) < ms then call('PEXPIRE', KEYS[key], ms) end
  end
end

-- Everything ends with the last of those that are left, and the marker at once with nobody.
local function settle()
  local last = call('ZREVRANGE', KEYS[8], 0, 0, 'WITHSCORES')[2]
  if not last then return call('DEL', KEYS[1]) end
  call('PEXPIREAT', KEYS[1], last)
  for key = 6, 8 do call('PEXPIREAT', KEYS[key], last) end
end

-- Takes a permit back.
local function give_back(holder)
  call('HDEL', KEYS[6], holder)
  call('ZREM', KEYS[7], holder)
  call('ZREM', KEYS[8], holder)
  settle()
end
