-- Begins every script: the only time that counts is the server's, which stands still while a script runs.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
