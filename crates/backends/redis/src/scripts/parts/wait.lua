-- include request
-- include queue

-- Ends an acquire whose lock isn't free: takes a place in the queue, or returns the conflicting value.
-- `head`, `till`: the first waiter, and until when it lives. `mode`: the requested mode. `found`: the lock's value, or
-- nil. `left`: ms until the lock may be free by itself, negative if that is not known.
local function wait_or_fail(mode, found, left, head, record, till)
  if not waits then
    -- Another client's value may have any length.
    return {'busy', string.sub(found or '', 1, 4096), call('ZCARD', queue)}
  end
  if not call('ZSCORE', queue, id) then
    local last = call('ZREVRANGE', queue, 0, 0, 'WITHSCORES')[2]
    call('ZADD', queue, (last or 0) + 1, id)
  end
  call('HSET', waiters, id, (now + ttl) .. ':' .. mode .. ARGV[2])
  keep_queue(ttl)
  local ahead = call('ZRANK', queue, id)
  -- Holders wake the others; an attempt without a wake-up is for a lost message, or the death of the first waiter.
  local again = math.min(math.floor(ttl / 3), 30000)
  if ahead == 0 then
    -- Another client publishes no wake-up at its release: -1 requests frequent attempts.
    local foreign = found and string.sub(found, 1, 11) ~= 'lockkeeper:'
    again = foreign and -1 or (left < 0 and 1000 or math.min(left + 5, 1000))
  elseif head and head ~= id then
    if ahead == 1 then again = math.min(again, 5000, math.max(till - now, 0) + 50) end
    -- It is free, and the first waiter's turn: its wake-up may be lost.
    if not found then
      reserve(till)
      wake(head, record, 0)
    end
  end
  return {'waits', ahead, again}
end
