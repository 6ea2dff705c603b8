-- Sets the marks to ARGV[1], for every slot, whatever they were. Asking first: DEL would also remove what is no hash.
redis.call('HLEN', KEYS[1])
redis.call('DEL', KEYS[1])
return redis.call('HSET', KEYS[1], 'any', ARGV[1], 'writer', ARGV[1])
