#!lua flags=allow-oom
-- declare: registers one shard of a topic, or gives it new settings, and makes its groups.
--
-- KEYS[1] conf     hash    epoch, class, groups, settings, rules
-- then for each group: ready, a stream, one entry a delivery
-- ARGV[1] mode     word    create (what is there stays), update (settings are replaced, groups are added) or mend (all
--                          that a declaration writes is written anew, unless the settings were changed meanwhile)
-- ARGV[2] shards   count   of a new topic
-- ARGV[3] groups   names   separated by spaces, in the order of the streams
-- ARGV[4] settings json    all settings of the topic
-- ARGV[5] full     flag    1 if the settings need more than a plain topic has
-- ARGV[6] seen     text    with mend: the epoch that was seen, or empty
-- ARGV[7] rules    pairs   fields of `conf` that the scripts read, and their values
--
-- Returns created, updated or kept, the epoch, the settings and the groups that hold now; 'shards' and the
--   number there, which the caller's differs from; or 'layout' and the one there, which is newer than this.
-- Cost O(groups).
-- Safe to repeat.
--
-- A group that is there stays, whatever the settings say: only `retire` removes one. Where somebody took a field away that
-- each declaration writes, the shard is declared anew.
local CONF = KEYS[1]
local mode, shards, wanted, settings, full, seen = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6]
-- Of the keys and of what is in them.
local LAYOUT = 1
local RULES = {
  'merge', 'max_wait', 'on_garbage', 'max_ready', 'max_messages', 'max_bytes', 'ttl', 'on_expired', 'interval', 'burst',
  'max_lateness', 'on_late', 'key_index', 'instance_ttl',
}

local conf = redis.call('HMGET', CONF, 'epoch', 'shards', 'groups', 'settings', 'class', 'layout')
local epoch, class = tonumber(conf[1]), conf[5]
if conf[6] and tonumber(conf[6]) ~= LAYOUT then
  return {'layout', conf[6]}
end
local is_whole = epoch and conf[2] and conf[3] and conf[4] and class and conf[6]
if mode == 'mend' then
  if (conf[1] or '') ~= seen then
    return {'kept', epoch or 0, conf[4] or '', conf[3] or ''}
  end
  conf[3], is_whole = false, false
elseif epoch and conf[2] and conf[2] ~= shards then
  return {'shards', conf[2]}
end
local names, known, streams = {}, {}, {}
for name in string.gmatch(conf[3] or '', '%S+') do
  names[#names + 1], known[name] = name, true
end
for name in string.gmatch(wanted, '%S+') do
  streams[#streams + 1] = name
  if not known[name] and (not is_whole or mode == 'update') then
    names[#names + 1], known[name] = name, true
  end
end
-- In one order on all shards, whoever came first.
table.sort(names)
local groups = table.concat(names, ' ')
for i, name in ipairs(streams) do
  if known[name] then
    -- From the first entry on, so that a group that was lost misses nothing.
    local made = redis.pcall('XGROUP', 'CREATE', KEYS[1 + i], name, '0', 'MKSTREAM')
    if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
      return redis.error_reply(made.err)
    end
  end
end
if is_whole and (mode ~= 'update' or (conf[4] == settings and groups == conf[3])) then
  return {'kept', epoch, conf[4], conf[3]}
end
if full or #names ~= 1 then
  class = 'full'
elseif class ~= 'full' then
  class = 'plain'
end
redis.call('HDEL', CONF, 'features', unpack(RULES))
redis.call('HSET', CONF, 'layout', LAYOUT, 'epoch', (epoch or 0) + 1, 'class', class, 'shards', shards,
  'groups', groups, 'settings', settings, unpack(ARGV, 7))
if full then
  redis.call('HSET', CONF, 'features', 1)
end
return {epoch and 'updated' or 'created', (epoch or 0) + 1, settings, groups}
