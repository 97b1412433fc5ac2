-- The fast wall in front of a run's budget, and its live figures.
--
-- KEYS[1]  loopwarden:budget:<run>        hash: model_calls, tool_calls, tokens, cost_microusd
--                                         (used and reserved together), and r:<id> for each open
--                                         reservation: its four amounts, separated by commas
-- KEYS[2]  loopwarden:budget:<run>:nonce  string: who may install the counters after a loss
--
-- reserve id a b c d  cap_a cap_b cap_c cap_d   -1 counters missing, 0 does not fit, 1 admitted
-- settle  id a b c d                            put the real amounts in the place of the reserved
-- install nonce a b c d                         1 installed, 0 somebody else was faster
local AXES = {"model_calls", "tool_calls", "tokens", "cost_microusd"}
local DAY = 86400
local key, command = KEYS[1], ARGV[1]

if command == "reserve" then
  if redis.call("EXISTS", key) == 0 then return -1 end
  local open = "r:" .. ARGV[2]
  if redis.call("HEXISTS", key, open) == 1 then return 1 end
  for i, axis in ipairs(AXES) do
    local asked, cap = tonumber(ARGV[2 + i]), tonumber(ARGV[6 + i])
    local now = tonumber(redis.call("HGET", key, axis) or "0")
    if asked > 0 and cap >= 0 and now + asked > cap then return 0 end
  end
  for i, axis in ipairs(AXES) do redis.call("HINCRBY", key, axis, ARGV[2 + i]) end
  redis.call("HSET", key, open, table.concat({ARGV[3], ARGV[4], ARGV[5], ARGV[6]}, ","))
  redis.call("EXPIRE", key, DAY)
  return 1
end

if command == "settle" then
  local open = "r:" .. ARGV[2]
  local reserved = redis.call("HGET", key, open)
  if not reserved then return 0 end
  local i = 0
  for amount in string.gmatch(reserved, "[^,]+") do
    i = i + 1
    redis.call("HINCRBY", key, AXES[i], tonumber(ARGV[2 + i]) - tonumber(amount))
  end
  redis.call("HDEL", key, open)
  return 1
end

if command == "install" then
  if redis.call("EXISTS", key) == 1 then return 0 end
  if redis.call("GET", KEYS[2]) ~= ARGV[2] then return 0 end
  for i, axis in ipairs(AXES) do redis.call("HSET", key, axis, ARGV[2 + i]) end
  redis.call("EXPIRE", key, DAY)
  redis.call("DEL", KEYS[2])
  return 1
end

return redis.error_reply("unknown command " .. command)
