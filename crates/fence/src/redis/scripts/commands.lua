-- The caller's commands, after the check and in the same step. From ARGV[4] on: how many words a command has, its words,
-- and so on. What was done before a command that fails stays done: Redis takes nothing back.
local no = check(#ARGV == 3)
if no then return no end
local results, at = {}, 4
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  local result = redis.pcall(unpack(ARGV, at + 1, at + words))
  if type(result) == 'table' and result.err then return {'failed', #results, result.err} end
  results[#results + 1] = result
  at = at + words + 1
end
return {'done', results}
