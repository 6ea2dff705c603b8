-- What a name shows: who holds it and who waits. Changes nothing.
-- KEYS: parts/keys.lua, all of them. ARGV: 1 how many waiters at most.
-- Returns the server's time in µs, the lock's type, its value, the ms its key has left, the permits (value, slot, ms
-- left, for each), how many wait, the first of them (what is known of each), and the last token.
-- include conflict
-- include permits

local kind = call('TYPE', KEYS[1]).ok
local found = kind == 'string' and conflicting(call('GET', KEYS[1]), '') or ''
if found == '' and kind == 'string' then kind = 'none' end
-- Another client's value may have any length.
found = string.sub(found, 1, 4096)
local permits = {}
if marked(found) then
  for _, id in ipairs(call('ZRANGE', KEYS[7], 0, -1)) do
    local till = tonumber(call('ZSCORE', KEYS[8], id) or 0)
    if till > now then
      local value = call('HGET', KEYS[6], id) or ''
      -- Of many permits only the first ones show whose they are: 65,536 of them must fit into one reply (reply_limit.rs).
      if #permits > 3 * 2048 then value = string.match(value, '^[^\n]*') .. '\n\n\n\n' end
      permits[#permits + 1] = value
      permits[#permits + 1] = tonumber(call('ZSCORE', KEYS[7], id))
      permits[#permits + 1] = till - now
    end
  end
end
local first_ones = {}
local waiting = 0
local all = call('HVALS', waiters)
for _, record in ipairs(all) do
  if tonumber(string.match(record, '^%d+') or 0) > now then waiting = waiting + 1 end
end
for _, id in ipairs(call('ZRANGE', queue, 0, -1)) do
  if #first_ones >= tonumber(ARGV[1]) then break end
  local record = call('HGET', waiters, id)
  if record and tonumber(string.match(record, '^%d+') or 0) > now then first_ones[#first_ones + 1] = record end
end
return {
  time[1] .. string.format('%06d', time[2]), kind, found, call('PTTL', KEYS[1]), permits, waiting, first_ones,
  call('GET', KEYS[4]) or '0',
}
