-- include time

-- The value of a hold that is granted (layout.rs). ARGV: 1 to 4 of acquire.lua.
local counter = string.find(ARGV[4], 't', 1, true) and KEYS[4]

-- The value of a hold that is granted, and its token, 0 without tokens. That is drawn here: above the last one, and above
-- every token of a server that forgot it, as long as its clock is not set back: microseconds since 2026. It is remembered
-- for 30 days, after which the clock alone is far enough ahead. Numbers become text slowly: few do.
local function granted_value()
  local seconds, us = time[1], time[2]
  if #us < 6 then us = string.rep('0', 6 - #us) .. us end
  local token, shown = 0, '0'
  if counter then
    local last, since_2026 = tonumber(call('GET', counter) or 0), seconds - 1767225600
    token = since_2026 * 1000000 + us
    if last < token then
      shown = since_2026 .. us
    else
      token = last + 1
      shown = string.format('%.0f', token)
    end
    call('SET', counter, shown, 'PX', '2592000000')
  end
  return ARGV[1] .. shown .. ':' .. seconds .. us .. ARGV[2], token
end
