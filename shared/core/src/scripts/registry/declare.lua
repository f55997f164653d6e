#!lua flags=allow-oom
-- declare: registers one shard of a topic or updates its settings, and creates its groups.
--
-- KEYS[1] conf           hash    epoch, version, class, groups, settings, rules
-- Then, for each group: ready, a stream with one entry for each delivery
-- ARGV[1] mode           word    create (keeps what exists), update (replaces the settings, adds groups) or repair (rewrites
--                                all that a declaration writes, unless the settings have changed since `seen`)
-- ARGV[2] shards         count   of a new topic
-- ARGV[3] groups         names   separated by spaces, in the order of the streams
-- ARGV[4] settings       json    all settings of the topic
-- ARGV[5] needs_general  flag    1 if the settings need more than a plain topic has
-- ARGV[6] seen           text    with repair: the epoch that was seen, or empty. With update: the epoch at which the settings may
--                                be replaced by different ones, 0 for a new topic, or empty for any
-- ARGV[7] version        ms      of the settings, as the first shard has it: when they came into force there. The other shards never
--                                go back to an older version, and take a newer one in any mode. Empty for the first shard, which
--                                decides
-- ARGV[8] rules          pairs   fields of `conf` that the scripts read, and their values
--
-- Returns created, updated or kept, then the epoch, the settings, the groups and the version now in force, and when the topic was
--   created in ms, 0 if that is not known; or 'shards' and the number of shards there, if it differs from the caller's; or 'layout'
--   and the layout there, if it is not this one; or 'epoch'
--   and the epoch there, if it is not `seen` and the settings differ; or 'resharding' and the new number of shards: until they are
--   in use, no settings are replaced, because the new shards would not get them; or 'removed', and 1 if the topic is gone, 0 while it
--   is being removed; or 'full' and the number of groups that the topic would have, if that is too many; or 'redirected' if the topic
--   is on other shards than the caller thinks, or is being restored there.
-- Cost O(groups).
-- Safe to repeat, and for the other shards even late.
--
-- An existing group stays, whatever the settings say: only `remove_group` removes one. If a field that each declaration
-- writes is missing, the shard is declared again.
local CONF = KEYS[1]
local mode, shards, wanted, settings, needs_general, seen = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6]
local version, first = tonumber(ARGV[7]), 8
-- The layout of the keys and of their values.
local LAYOUT = 1
-- The most groups of a topic. Those that its settings no longer name count, those of instances do not. Scripts read all of them.
local MAX_GROUPS = 128
local RULES = {
  'merge', 'max_wait', 'on_garbage', 'max_ready', 'max_messages', 'max_bytes', 'ttl', 'on_expired', 'interval', 'burst',
  'max_lateness', 'on_late', 'key_index', 'instance_ttl',
}

local conf = redis.call('HMGET', CONF, 'epoch', 'shards', 'groups', 'settings', 'class', 'layout', 'version', 'resharding',
  'removed', 'last_epoch', 'next', 'created')
local epoch, class = tonumber(conf[1]), conf[5]
local there, created = tonumber(conf[7]) or 0, tonumber(conf[12]) or 0
if conf[6] and tonumber(conf[6]) ~= LAYOUT then
  return {'layout', conf[6]}
end
-- A removed topic is created again only on purpose. Its epochs go on, so that every process notices.
local before = epoch or tonumber(conf[10]) or 0
if conf[9] and (conf[9] ~= 'gone' or mode ~= 'update') then
  return {'removed', conf[9] == 'gone' and 1 or 0}
end
if not epoch and conf[11] then
  return {'redirected'}
end
local is_whole = epoch and conf[2] and conf[3] and conf[4] and class and conf[6]
local replaces = mode == 'update' and not (version and there > version)
if mode == 'repair' then
  if (conf[1] or '') ~= seen then
    return {'kept', epoch or 0, conf[4] or '', conf[3] or '', there, created}
  end
  conf[3], is_whole = false, false
elseif mode == 'update' and seen ~= '' and tonumber(seen) ~= (epoch or 0) and conf[4] ~= settings then
  return {'epoch', epoch or 0}
elseif epoch and conf[2] and conf[2] ~= shards then
  return {'shards', conf[2]}
elseif version and version > there and conf[4] ~= settings then
  -- The shard has missed a change.
  replaces = true
end
local names, known, streams = {}, {}, {}
for name in string.gmatch(conf[3] or '', '%S+') do
  names[#names + 1], known[name] = name, true
end
for name in string.gmatch(wanted, '%S+') do
  streams[#streams + 1] = name
  if not known[name] and (not is_whole or replaces) then
    names[#names + 1], known[name] = name, true
  end
end
-- The order is the same on all shards, whichever group joined first.
table.sort(names)
local groups = table.concat(names, ' ')
local keeps = is_whole and (not replaces or (conf[4] == settings and groups == conf[3]))
if conf[8] and is_whole and not keeps then
  return {'resharding', conf[8]}
end
local lasting = 0
for _, name in ipairs(names) do
  if string.sub(name, 1, 9) ~= 'instance-' then
    lasting = lasting + 1
  end
end
-- Only the first shard decides. The groups of a topic that is restored or resharded are there already.
if is_whole and not version and lasting > MAX_GROUPS and groups ~= conf[3] then
  return {'full', lasting}
end
for i, name in ipairs(streams) do
  if known[name] then
    -- Reads from the first entry, so that a lost group misses nothing.
    local made = redis.pcall('XGROUP', 'CREATE', KEYS[1 + i], name, '0', 'MKSTREAM')
    if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
      return redis.error_reply(made.err)
    end
  end
end
if keeps then
  if version and version > there then
    redis.call('HSET', CONF, 'version', ARGV[7])
  end
  -- Older releases wrote no version.
  return {'kept', epoch, conf[4], conf[3], version or math.max(there, 1), created}
end
if needs_general or #names ~= 1 then
  class = 'general'
elseif class ~= 'general' then
  class = 'plain'
end
local outcome = epoch and 'updated' or 'created'
if conf[9] then
  -- The key ends with its last field, and with it the time at which it was to end.
  for i, field in ipairs(redis.call('HGETALL', CONF)) do
    if i % 2 == 1 then
      redis.call('HDEL', CONF, field)
    end
  end
end
epoch = before + 1
version = version or math.max(there + 1, (clock(0)))
redis.call('HDEL', CONF, 'features', unpack(RULES))
redis.call('HSET', CONF, 'layout', LAYOUT, 'epoch', epoch, 'version', whole(version), 'class', class, 'shards', shards,
  'groups', groups, 'settings', settings, unpack(ARGV, first))
if needs_general then
  redis.call('HSET', CONF, 'features', 1)
end
-- The others get it from the first shard, if at all.
if outcome == 'created' and created == 0 and ARGV[7] == '' then
  created = version
  redis.call('HSET', CONF, 'created', whole(created))
end
return {outcome, epoch, settings, groups, version, created}
