-- The two-mark rule (F-a to F-d), as crates/fence/src/rule.rs words it.
-- KEYS[1] is the hash of the marks. ARGV: the token; the kind, r(eader), w(riter) or o(nce); the slot, or nothing.
-- Tokens end below 2^53, so a double holds them exactly; what is stored is the text that came, never a double's.

-- Nothing if the section may go on, its marks raised; else the answer. With `write` something is written in any case:
-- so that a replica, which may lag behind, refuses.
local function check(write)
  local key, offered, kind, slot = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
  local token, marks, slots = tonumber(offered), {}, {}
  if slot == '' then
    local all = redis.call('HGETALL', key)
    -- A writer that has been here, and nobody since: the common case, and nothing to raise.
    if #all == 4 and all[2] == offered and all[4] == offered and all[1] == 'any' and all[3] == 'writer' and kind == 'w'
      and not write then
      return
    end
    for i = 1, #all, 2 do marks[all[i]] = all[i + 1] end
  else
    local names = {'any', 'writer', 'any:' .. slot, 'writer:' .. slot}
    local found = redis.call('HMGET', key, unpack(names))
    for i = 1, 4 do marks[names[i]] = found[i] or nil end
  end

  local highest, shown = 0, ''
  for name, text in pairs(marks) do
    local mark, first = tonumber(text), string.byte(name)
    if not mark or mark < 1 or mark > 9007199254740991 or mark % 1 ~= 0 then return {'damaged', name, text} end
    if name ~= 'any' and name ~= 'writer' then
      local which, number = string.match(name, '^(%a+):(%d+)$')
      if which ~= 'any' and which ~= 'writer' or tostring(tonumber(number)) ~= number then return {'damaged', name, text} end
      slots[number] = true
    end
    -- 119 is `w`. A reader faces the writers' marks only; a writer all, since `any` is never below `writer`.
    if mark > highest and (kind ~= 'r' or first == 119) then highest, shown = mark, text end
    marks[name] = mark
  end
  if token < highest then return {'stale', shown} end
  if token == highest and kind == 'o' then return {'repeated'} end

  local any, writer = marks['any'] or 0, marks['writer'] or 0
  if kind == 'r' then
    if token > any or write then
      redis.call('HSET', key, 'any', token > any and offered or string.format('%.0f', any))
    end
    any = math.max(any, token)
    for number in pairs(slots) do
      local own_any, own_writer = marks['any:' .. number] or 0, marks['writer:' .. number] or 0
      if own_any <= any and own_writer <= writer then
        -- It says no more than the base.
        redis.call('HDEL', key, 'any:' .. number, 'writer:' .. number)
      elseif own_any < token then
        redis.call('HSET', key, 'any:' .. number, offered)
      end
    end
  elseif slot == '' then
    if write or any ~= token or writer ~= token then
      redis.call('HSET', key, 'any', offered, 'writer', offered)
    end
    -- No slot says more than the base from here on. After the base is raised: a user who may do the one and not the
    -- other must not take marks away.
    for number in pairs(slots) do redis.call('HDEL', key, 'any:' .. number, 'writer:' .. number) end
  else
    local own_any, own_writer = marks['any:' .. slot] or 0, marks['writer:' .. slot] or 0
    if math.max(any, own_any) ~= token or math.max(writer, own_writer) ~= token then
      redis.call('HSET', key, 'any:' .. slot, offered, 'writer:' .. slot, offered)
    elseif write then
      redis.call('HSET', key, own_any == token and 'any:' .. slot or 'any', offered)
    end
  end
end
