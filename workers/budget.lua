-- The fast wall in front of the budgets of a run, its graph and its project's day, and their live
-- figures.
--
-- KEYS  loopwarden:budget:<scope>:<id>    hash: model_calls, tool_calls, tokens, cost_microusd
--                                         (used and reserved together), and r:<id> for each open
--                                         reservation: its four amounts, separated by commas
--
-- reserve id a b c d  then four caps for each key   0 admitted by all, k not by the k-th and so by
--                                         none, -m some are missing: the sum of 2^(k-1) over them
-- settle  id a b c d                      put the real amounts in the place of the reserved
-- install nonce a b c d  then id and four amounts for each call in flight
--                                         KEYS: the counters and their nonce, which says who may
--                                         install them after a loss; 1 installed, 0 not
local AXES = {"model_calls", "tool_calls", "tokens", "cost_microusd"}
local DAY = 86400
local command = ARGV[1]

if command == "reserve" then
  local open, missing = "r:" .. ARGV[2], 0
  for k, key in ipairs(KEYS) do
    if redis.call("EXISTS", key) == 0 then missing = missing + 2 ^ (k - 1) end
  end
  if missing > 0 then return -missing end
  for k, key in ipairs(KEYS) do
    for i, axis in ipairs(AXES) do
      local asked, cap = tonumber(ARGV[2 + i]), tonumber(ARGV[2 + 4 * k + i])
      local now = tonumber(redis.call("HGET", key, axis))
      if asked > 0 and cap >= 0 and now + asked > cap
        and redis.call("HEXISTS", key, open) == 0 then return k end
    end
  end
  for _, key in ipairs(KEYS) do
    if redis.call("HSETNX", key, open, table.concat(ARGV, ",", 3, 6)) == 1 then
      for i, axis in ipairs(AXES) do redis.call("HINCRBY", key, axis, ARGV[2 + i]) end
    end
    redis.call("EXPIRE", key, DAY)
  end
  return 0
end

if command == "settle" then
  local open = "r:" .. ARGV[2]
  for _, key in ipairs(KEYS) do
    local reserved, i = redis.call("HGET", key, open), 0
    for amount in string.gmatch(reserved or "", "[^,]+") do
      i = i + 1
      redis.call("HINCRBY", key, AXES[i], tonumber(ARGV[2 + i]) - tonumber(amount))
    end
    redis.call("HDEL", key, open)
  end
  return 1
end

if command == "install" then
  local key, nonce = KEYS[1], KEYS[2]
  if redis.call("EXISTS", key) == 1 or redis.call("GET", nonce) ~= ARGV[2] then return 0 end
  for i, axis in ipairs(AXES) do redis.call("HSET", key, axis, ARGV[2 + i]) end
  for at = 7, #ARGV, 5 do
    redis.call("HSET", key, "r:" .. ARGV[at], table.concat(ARGV, ",", at + 1, at + 4))
  end
  redis.call("EXPIRE", key, DAY)
  redis.call("DEL", nonce)
  return 1
end

return redis.error_reply("unknown command " .. command)
