-- Shared by migrate_out and migrate_in: packs a message with all its copies into one text for another shard.
--
-- A bundle is a MessagePack array. It starts with five values: the key that decides the shard, or ''; the record, or
-- false; the `meta` value, or ''; the due time, or -1 if past waiting; 1 if it can be merged into. Then come seven values
-- for each copy: its group; 1 if it is in garbage; its garbage time or the time of its next attempt; 1 if it holds its
-- ordering key; its `attempts` value, or ''; its `garbage_info` value, or ''; the time of its garbage hook, or -1.
local by_name = {}
for _, g in ipairs(groups) do
  by_name[g.name] = g
end

-- Returns when a copy is due in `retry`, where it goes from any state but garbage, and whether it keeps its ordering key.
-- A copy that no handler has had keeps only its position within its key: other messages of the key may have left before it.
local function retry_of(at, m, value)
  if at.zset == 'retry' then
    return tonumber(redis.call('ZSCORE', at.g.retry, at.member)), holds(at.g, m)
  end
  local attempts, crashes = read_attempts(value)
  return m.due, attempts + crashes > 0 and holds(at.g, m)
end

-- Ends the copies of a message whose payload is gone, because they would hold up the other shards.
local function lose(m)
  for _, g in ipairs(groups) do
    for kind, text in pairs({retry = member(m), backlog = backlog_member(m), parked = parked_member(m)}) do
      if redis.call('ZREM', g[kind], text) == 1 then
        end_copy(g, m, 'lost')
        release(g, m)
      end
    end
  end
end

-- Takes a message out of the shard. Returns its bundle, and the field of `merge` that points to it, if any. Returns nil if
-- a group has it on its stream, or if it is not here.
local function wrap(id)
  local m, where, copies = find(id)
  if where == 'unknown' then
    lose(m)
  end
  if where == 'unknown' or where == 'in_flight' then
    return nil
  end
  copies = copies or {}
  for _, g in ipairs(where == 'waiting' and {} or groups) do
    local time = g.garbage_count > 0 and redis.call('ZSCORE', g.garbage, id)
    if time then
      copies[#copies + 1] = {g = g, zset = 'garbage', member = id, time = tonumber(time)}
    end
  end
  local merges = m.merge ~= '' and redis.call('HGET', MERGE, m.key .. '\0' .. m.merge) == id
  local bundle = {
    m.key ~= '' and m.key or m.merge, redis.call('HGET', PAYLOAD, id), m.has_meta and redis.call('HGET', META, id) or '',
    tonumber(m.waiting) or -1, merges and 1 or 0,
  }
  for _, at in ipairs(copies) do
    local g = at.g
    local attempts = g.tried > 0 and redis.call('HGET', g.attempts, id) or ''
    local time, is_holder = at.time, at.time and holds(g, m)
    if not time then
      time, is_holder = retry_of(at, m, attempts)
    end
    for _, value in ipairs({
      g.name, at.time and 1 or 0, time, is_holder and 1 or 0, attempts, at.time and redis.call('HGET', g.garbage_info, id) or '',
      tonumber(redis.call('ZSCORE', g.garbage_hook, id)) or -1,
    }) do
      bundle[#bundle + 1] = value
    end
  end
  if m.waiting then
    redis.call('ZREM', WAITING, member(m))
    count('shifted', -1)
  end
  for _, at in ipairs(copies) do
    count('shifted:' .. at.g.name, -1)
    forget_attempts(at.g, m)
    redis.call('HDEL', at.g.garbage_info, id)
    redis.call('ZREM', at.g.garbage_hook, id)
    take_out(m, at)
  end
  if size.left > 0 then
    set_owed(id, 0)
  end
  forget(m)
  return cmsgpack.pack(bundle), merges and m.key .. '\0' .. m.merge
end

-- Puts the message of a bundle into the shard. A copy whose group no longer exists ends: it is counted as dropped.
local function unwrap(id, text)
  local bundle = cmsgpack.unpack(text)
  local record, packed, due, merges = bundle[2], bundle[3], bundle[4], bundle[5] == 1
  local m = read_meta(id, packed ~= '' and packed)
  if record then
    redis.call('HSET', PAYLOAD, id, record)
  end
  if m.has_meta then
    size.meta = size.meta + 1
    redis.call('HSET', META, id, packed)
    index(m)
    if m.bytes > 0 then
      count('bytes', m.bytes)
    end
    if is_ranked(m) then
      count('ranked')
    end
  end
  local scope = m.key .. '\0' .. m.merge
  if merges and redis.call('HEXISTS', MERGE, scope) == 0 then
    redis.call('HSET', MERGE, scope, id)
  end
  if due >= 0 then
    redis.call('ZADD', WAITING, due, member(m))
    count('shifted')
    look_at(due)
  end
  local kept = 0
  for i = 6, #bundle, 7 do
    local g, is_garbage, time, is_holder = by_name[bundle[i]], bundle[i + 1] == 1, bundle[i + 2], bundle[i + 3] == 1
    local attempts, info, hook_at = bundle[i + 4], bundle[i + 5], bundle[i + 6]
    count('shifted:' .. (g and g.name or '-'))
    if not g then
      count('dropped:-')
    else
      kept = kept + 1
      if attempts ~= '' then
        g.tried = g.tried + 1
        redis.call('HSET', g.attempts, id, attempts)
      end
      if is_garbage then
        redis.call('HSET', g.garbage_info, id, info)
        redis.call('ZADD', g.garbage, time, id)
        if hook_at >= 0 then
          redis.call('ZADD', g.garbage_hook, hook_at, id)
        end
      else
        redis.call('ZADD', g.retry, time, member(m))
        look_at(time)
      end
      if is_holder and not holder(g, m.key) then
        hold(g, m.key, id)
      end
    end
  end
  if kept > 1 then
    size.left = size.left + 1
    set_owed(id, kept)
  elseif kept == 0 and due < 0 then
    forget(m)
  end
  return m
end
