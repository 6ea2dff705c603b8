-- An operator ends a hold by its token (B1 to B3).
-- KEYS: parts/keys.lua, all of them. ARGV: 1 token, 2 `now` or nothing, 3 why, 4 who.
-- Returns a list: 'done'; 'closed': it is over, and only keeps the lock closed; or 'other' and the tokens of the live holds.
-- include queue
-- include permits

local token, at_once = ARGV[1], ARGV[2] == 'now'
local header = '^(lockkeeper:([^:\n]+):1:)(%a+)(:(%d+):%d+:(%d+):(%x+)\n[^\n]*\n)[^\n]*\n[^\n]*\n(.*)$'

-- Every hold of the name: its value, and how many ms of its key are left.
local found = redis.pcall('GET', KEYS[1])
if type(found) ~= 'string' then found = nil end
local holds = {}
local permits = marked(found) ~= nil
if permits then
  sweep()
  for _, id in ipairs(call('ZRANGE', KEYS[7], 0, -1)) do
    local till = call('ZSCORE', KEYS[8], id)
    if till then holds[#holds + 1] = {call('HGET', KEYS[6], id), till - now} end
  end
elseif found then
  holds[1] = {found, call('PTTL', KEYS[1])}
end

local live = {'other'}
for _, hold in ipairs(holds) do
  local front, id, state, middle, its, extra, client, meta = string.match(hold[1] or '', header)
  local over = state == 'closed' or hold[2] <= tonumber(extra or 0)
  if its == token and token ~= '0' then
    if over and not at_once then return {'closed'} end
    if at_once then
      if permits then give_back(id) else call('DEL', KEYS[1]) end
      local head, record, till = first()
      if head then
        reserve(till)
        wake(head, record, 0)
      end
    elseif state == 'held' then
      local value = front .. 'revoked' .. middle .. ARGV[3] .. '\n' .. ARGV[4] .. '\n' .. meta
      if permits then
        call('HSET', KEYS[6], id, value)
      else
        call('SET', KEYS[1], value, 'KEEPTTL')
      end
    end
    if not over then call('PUBLISH', 'lockkeeper:wake:' .. client, id .. ' revoked') end
    return {'done'}
  end
  if its and its ~= '0' and state == 'held' and not over then live[#live + 1] = its end
end
return live
