
end

local no = check(false)
if no then return no end
local keys, args = {}, {}
for i = 2, #KEYS do keys[i - 1] = KEYS[i] end
for i = 4, #ARGV do args[i - 3] = ARGV[i] end
local well, result = pcall(work, keys, args)
-- An error that the script gives back is one as well as an error that it raises.
if not well or type(result) == 'table' and result.err then
  return {'failed', 0, type(result) == 'table' and result.err or tostring(result)}
end
return {'done', result}
