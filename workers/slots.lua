-- Concurrency slots as leases that heal themselves.
--
-- KEYS[1]   loopwarden:slots:epoch    string: present while the sets can be trusted
-- KEYS[2..] loopwarden:slots:<scope>  sorted set: member = one admission of a run,
--                                     score = when its lease ends
--
-- acquire member ttl limit...   0 granted, i = scope i is full, -1 sets lost
-- renew   member ttl            keep a slot that is still held
-- restore member ttl            put a holder back after a loss
-- release member                give it back
-- trust   nonce                 KEYS[2] = the nonce's key: the sets are whole again
local function now()
  local t = redis.call("TIME")
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end
local command, member = ARGV[1], ARGV[2]

if command == "acquire" then
  if redis.call("EXISTS", KEYS[1]) == 0 then return -1 end
  local at = now()
  for i = 2, #KEYS do
    redis.call("ZREMRANGEBYSCORE", KEYS[i], "-inf", at)
    local held = redis.call("ZSCORE", KEYS[i], member)
    if not held and redis.call("ZCARD", KEYS[i]) >= tonumber(ARGV[2 + i]) then return i - 1 end
  end
  for i = 2, #KEYS do redis.call("ZADD", KEYS[i], at + tonumber(ARGV[3]), member) end
  return 0
end

if command == "renew" then
  local ends = now() + tonumber(ARGV[3])
  for i = 2, #KEYS do redis.call("ZADD", KEYS[i], "XX", ends, member) end
  return 0
end

if command == "restore" then
  local ends = now() + tonumber(ARGV[3])
  for i = 2, #KEYS do redis.call("ZADD", KEYS[i], ends, member) end
  return 0
end

if command == "release" then
  for i = 2, #KEYS do redis.call("ZREM", KEYS[i], member) end
  return 0
end

if command == "trust" then
  if redis.call("GET", KEYS[2]) ~= member then return 0 end
  redis.call("SET", KEYS[1], "1")
  return 1
end

return redis.error_reply("unknown command " .. command)
