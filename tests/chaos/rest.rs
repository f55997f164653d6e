//! The contents of Redis when no message is left: each key of a topic is gone, or has a bound that does not depend on
//! how much was sent.

use crate::drain::resharding;
use crate::faults::is_record;
use crate::plan::{TICK_EVERY, TICKS, Topic};
use crate::settings::NAMESPACE;
use crate::world::World;
use lisa_tests::relay::OF_SCHEDULES;
use redis::cmd;

/// The number of keys that always exist, and of those that grow with each shard that a topic ever had.
const SETTINGS: u64 = 64;
const COUNTERS: u64 = 160;
const OF_SHARD: u64 = 3;
/// The number of samples in a history, and of buckets of lateness.
const HISTORY: u64 = 672;
const BUCKETS: u64 = 16;
/// The number of failed attempts that a shard keeps. Redis drops whole nodes of a stream, of up to 100 entries.
const FAILURES: u64 = 1100;
/// A topic whose ids are remembered for longer than this is not waited for.
const SOON: u64 = 60;

/// A shard that is in service, or was.
struct Shard {
    /// The prefix of its keys.
    prefix: String,
    /// The number of shards that its topic ever had.
    ever: u64,
    /// True if its memory of ended messages must be gone by now.
    forgets: bool,
}

/// Checks that only settings, counters, the registry and streams without entries are left. A retired shard may have
/// only what leads to the others; only a topic that remembers for long may have tombstones; a topic that was removed may have
/// only the record of its removal.
pub(crate) async fn leftovers(world: &World) -> Result<(), String> {
    let still = resharding(world).await?;
    let mut shards = Vec::new();
    for topic in Topic::ALL {
        let stem = format!("{NAMESPACE}:v1:{{{}:", topic.name());
        let signpost = format!("{stem}0}}:conf");
        let next: Option<u16> = world
            .command(cmd("HGET").arg(&signpost).arg("next"))
            .await?;
        let (first, number) = (next.unwrap_or(0), world.fleet.shards().of(topic));
        let ever = u64::from(first + number);
        let forgets = topic.dedup_window().as_secs() < SOON && !still.contains(&topic);
        let shard = |prefix| Shard {
            prefix,
            ever,
            forgets,
        };
        let newest = (first..first + number).map(|n| shard(format!("{stem}{n}}}:")));
        shards.extend(newest);
        shards.push(shard(signpost));
        if still.contains(&topic) {
            shards.push(shard(stem));
        }
    }
    let keys: Vec<String> = world.command(cmd("KEYS").arg("*")).await?;
    let registry = format!("{NAMESPACE}:v1:{{registry}}:");
    let ticks = format!("{NAMESPACE}:v1:{{{TICKS}:");
    let mut left = Vec::new();
    for key in keys {
        let what = key.rsplit_once("}:").map_or(&*key, |(_, what)| what);
        let is_well = if key.starts_with(&registry) {
            [
                "topics",
                "topics:version",
                "managers",
                "snapshot",
                "workers",
                "audit",
                "series",
                "series15",
                "observed",
                "token_key",
            ]
            .contains(&what)
                || OF_SCHEDULES.contains(&what)
        } else if key.starts_with(&ticks) {
            is_bounded(world, &key, what).await?
        } else {
            match shards.iter().find(|shard| key.starts_with(&shard.prefix)) {
                Some(shard) => is_at_rest(world, shard, &key, what).await?,
                None => is_record(world, &key).await?,
            }
        };
        if !is_well {
            left.push(key);
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    Err(left.join(" "))
}

async fn is_at_rest(world: &World, shard: &Shard, key: &str, what: &str) -> Result<bool, String> {
    let fields = async || world.command::<u64>(cmd("HLEN").arg(key)).await;
    Ok(match what {
        "conf" => fields().await? <= SETTINGS + OF_SHARD * shard.ever,
        "stats" => fields().await? <= COUNTERS + OF_SHARD * shard.ever,
        "tomb" | "into" => !shard.forgets,
        "series" | "series15" => world.command::<u64>(cmd("XLEN").arg(key)).await? <= HISTORY,
        "failures" => world.command::<u64>(cmd("XLEN").arg(key)).await? <= FAILURES,
        "observed" => fields().await? <= BUCKETS,
        _ if what.starts_with("ready:") => world.command::<u64>(cmd("XLEN").arg(key)).await? == 0,
        _ => false,
    })
}

/// A schedule continues: its topic holds what was sent ahead, and remembers what came within its window of 20 s, and
/// until `clean` has run twice.
async fn is_bounded(world: &World, key: &str, what: &str) -> Result<bool, String> {
    let most = match what {
        "series" | "series15" => HISTORY,
        _ => 60_000 / TICK_EVERY,
    };
    let size = match world
        .command::<String>(cmd("TYPE").arg(key))
        .await?
        .as_str()
    {
        "zset" => cmd("ZCARD"),
        "stream" => cmd("XLEN"),
        "hash" if key.ends_with(":conf") || key.ends_with(":stats") => return Ok(true),
        "hash" => cmd("HLEN"),
        // The key is gone by now.
        "none" => return Ok(true),
        _ => return Ok(false),
    };
    let mut ask = size;
    Ok(world.command::<u64>(ask.arg(key)).await? <= most)
}
