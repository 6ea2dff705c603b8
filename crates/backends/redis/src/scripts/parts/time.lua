-- The only time that counts is the server's, which stands still while a script runs.
local call = redis.call
local time = call('TIME')
