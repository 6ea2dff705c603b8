-- include keys

-- The queue: waiters in the order of arrival, and how to wake them.
-- The first waiter that is alive, and what is known of it. Those before it whose time is over are removed; nobody's is
-- longer than the longest ttl, an hour, but that of one who died before the clock was set back.
local function first()
  while true do
    local head = call('ZRANGE', queue, 0, 0)[1]
    if not head then return nil end
    local record = call('HGET', waiters, head)
    local till = record and tonumber(string.match(record, '^%d+'))
    if till and till > now and till <= now + 3601000 then return head, record, till end
    call('ZREM', queue, head)
    call('HDEL', waiters, head)
  end
end

-- Wakes a waiter: it tries again in so many ms.
local function wake(waiter, record, pause)
  local client = string.match(record, '^%d+:[^:\n]*:%d+:(%x+)')
  if client then call('PUBLISH', 'lockkeeper:wake:' .. client, waiter .. ' ' .. pause) end
end

-- Reserves a lock that became free for its waiters, so that a plain `SET` fails and is followed by a script: until the first
-- waiter takes it, for longer than that takes if its wake-up is lost, and not for longer than the waiter lives.
local function reserve(till)
  call('SET', KEYS[1], 'lockkeeper:reserved:1', 'NX', 'PX', math.min(till - now, 2000))
end

-- Takes a waiter out. Whether it waited.
local function leave(waiter)
  call('HDEL', waiters, waiter)
  return call('ZREM', queue, waiter) == 1
end

-- What the waiters need lives for at least so many ms more.
local function keep_queue(ms)
  if call('PTTL', queue) < ms then
    call('PEXPIRE', queue, ms)
    call('PEXPIRE', waiters, ms)
  end
end
