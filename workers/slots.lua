-- Concurrency slots as leases that heal themselves.
--
-- KEYS[1]   loopwarden:slots:epoch    string: present while the sets can be trusted
-- KEYS[2..] loopwarden:slots:<scope>  sorted set: member = a run that is admitted or at work,
--                                     score = when its lease ends
--
-- acquire member before epoch ttl limit...   0 granted, i = scope i is full, -1 sets lost
--         `before`, the same run's admission, makes room for it in any case
-- renew   member ttl            keep a slot that is still held
-- restore member ttl            put a holder back after a loss
-- release member                give it back
-- trust   nonce epoch           KEYS[2] = the nonce's key: the sets are whole again
local function now()
  local t = redis.call("TIME")
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end
local command, member = ARGV[1], ARGV[2]

if command == "acquire" then
  if redis.call("EXPIRE", KEYS[1], ARGV[4]) == 0 then return -1 end
  local at, full = now(), 0
  for i = #KEYS, 2, -1 do
    redis.call("ZREM", KEYS[i], ARGV[3])
    redis.call("ZREMRANGEBYSCORE", KEYS[i], "-inf", at)
    local others = redis.call("ZCARD", KEYS[i])
    if redis.call("ZSCORE", KEYS[i], member) then others = others - 1 end
    if others >= tonumber(ARGV[4 + i]) then full = i - 1 end
  end
  for i = 2, #KEYS do
    if full == 0 then redis.call("ZADD", KEYS[i], at + tonumber(ARGV[5]), member) end
  end
  return full
end

if command == "renew" then
  redis.call("EXPIRE", KEYS[1], ARGV[3])
  local ends = now() + tonumber(ARGV[4])
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
  redis.call("SET", KEYS[1], "1", "EX", ARGV[3])
  return 1
end

return redis.error_reply("unknown command " .. command)
