-- Extends an exclusive hold by a full ttl with nothing but the lock's own key: while a slot of a cluster migrates, no call
-- with several keys is served of which one does not exist. Never creates a key.
-- KEYS: 1 of parts/keys.lua. ARGV and reply: as of renew.lua.
local id, px, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local mine = 'lockkeeper:' .. id .. ':1:'
local found = redis.pcall('GET', KEYS[1])
if type(found) ~= 'string' or string.sub(found, 1, #mine) ~= mine then return 0 end
local state = string.match(found, '^(%a+):', #mine + 1)
if state == 'revoked' then return 2 end
if state ~= 'held' or redis.call('PTTL', KEYS[1]) <= px - ttl then return 0 end
redis.call('PEXPIRE', KEYS[1], px)
return 1
