-- What a name shows: who holds it and who waits. Changes nothing.
-- KEYS: as value.lua says, with permits and the counter. ARGV: 1 how many waiters at most.
-- Returns the server's time in µs, the lock's type, its value, the ms its key has left, the permits (value, slot, ms
-- left, for each), how many wait, the first of them (what is known of each), and the last token.
local kind = redis.call('TYPE', KEYS[1]).ok
local found = kind == 'string' and in_the_way(redis.call('GET', KEYS[1]), '') or ''
if found == '' and kind == 'string' then kind = 'none' end
local permits = {}
if marked(found) then
  for _, id in ipairs(redis.call('ZRANGE', KEYS[6], 0, -1)) do
    local till = tonumber(redis.call('ZSCORE', KEYS[7], id) or 0)
    if till > now then
      permits[#permits + 1] = redis.call('HGET', KEYS[5], id) or ''
      permits[#permits + 1] = tonumber(redis.call('ZSCORE', KEYS[6], id))
      permits[#permits + 1] = till - now
    end
  end
end
local waiters = {}
local waiting = 0
local all = redis.call('HVALS', KEYS[4])
for _, record in ipairs(all) do
  if tonumber(string.match(record, '^%d+') or 0) > now then waiting = waiting + 1 end
end
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  if #waiters >= tonumber(ARGV[1]) then break end
  local record = redis.call('HGET', KEYS[4], id)
  if record and tonumber(string.match(record, '^%d+') or 0) > now then waiters[#waiters + 1] = record end
end
return {
  time[1] .. string.format('%06d', time[2]), kind, found, redis.call('PTTL', KEYS[1]), permits, waiting, waiters,
  redis.call('GET', KEYS[8]) or '0',
}
