-- Sets the marks to ARGV[1], for every slot, whatever they were. The base first: what fails after it takes no mark away.
redis.call('HSET', KEYS[1], 'any', ARGV[1], 'writer', ARGV[1])
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if field ~= 'any' and field ~= 'writer' then redis.call('HDEL', KEYS[1], field) end
end
return 1
