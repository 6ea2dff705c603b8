
end

local no = check(false)
if no then return no end
local keys, args = {}, {}
for i = 2, #KEYS do keys[i - 1] = KEYS[i] end
for i = 4, #ARGV do args[i - 3] = ARGV[i] end
local well, result = pcall(work, keys, args)
if not well then
  return {'failed', 0, type(result) == 'table' and result.err or tostring(result)}
end
return {'done', result}
