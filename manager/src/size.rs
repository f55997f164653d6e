//! Estimates what a load needs: memory and disk of Redis, cores of each process, and connections.
//!
//! Knows only the load and the [figures]: it asks no relay.

pub(crate) mod figures;

use std::time::Duration;

use lisa_core::durability::Durability;
use serde::Serialize;

use figures::*;

/// The mode of the append-only file of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AppendOnly {
    /// No append-only file
    Off,
    /// Flushed once a second
    Everysec,
    /// Flushed before each reply
    Always,
}

/// The load to estimate for. Rates are per second, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Load {
    pub(crate) waiting: u64,
    pub(crate) garbage: u64,
    pub(crate) payload: u64,
    pub(crate) headers: u64,
    pub(crate) key: u64,
    pub(crate) sends: f64,
    pub(crate) deliveries: f64,
    #[serde(rename = "outage_ms", serialize_with = "in_ms")]
    pub(crate) outage: Duration,
    pub(crate) topics: u64,
    pub(crate) shards: u64,
    pub(crate) groups: u64,
    pub(crate) own_ids: bool,
    #[serde(rename = "dedup_window_ms", serialize_with = "in_ms")]
    pub(crate) dedup_window: Duration,
    pub(crate) batch: u64,
    pub(crate) pull: bool,
    pub(crate) append_only: AppendOnly,
    pub(crate) durability: Durability,
    pub(crate) producers: u64,
    pub(crate) managers: u64,
    pub(crate) consumers: u64,
    pub(crate) servers: u64,
}

fn in_ms<S: serde::Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(lisa_core::time::millis(*duration))
}

/// The needs of a load.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Estimate {
    pub(crate) redis: Redis,
    pub(crate) cores: Cores,
    pub(crate) connections: Connections,
}

/// The needs of Redis: in bytes, those of all masters together.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Redis {
    /// `used_memory`.
    pub(crate) memory: u64,
    pub(crate) of: Parts,
    /// The pages that change during a snapshot or a rewrite, which exist twice meanwhile.
    pub(crate) copy_on_write: u64,
    /// The value of `maxmemory`.
    pub(crate) maxmemory: u64,
    /// The memory of the machine.
    pub(crate) machine: u64,
    /// A snapshot, which is also the size of a backup.
    pub(crate) snapshot: u64,
    /// The append-only file at its largest: before a rewrite ends.
    pub(crate) disk: u64,
    pub(crate) disk_per_second: u64,
}

/// The parts of the memory of Redis.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Parts {
    pub(crate) waiting: u64,
    /// The messages that collect while no consumer reads.
    pub(crate) outage: u64,
    pub(crate) garbage: u64,
    pub(crate) ended_ids: u64,
    pub(crate) topics: u64,
    pub(crate) connections: u64,
    pub(crate) server: u64,
}

/// The cores in use.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Cores {
    pub(crate) redis: f64,
    pub(crate) producers: f64,
    pub(crate) managers: f64,
    pub(crate) consumers: f64,
    /// The number of Redis processes that can do the work of `redis`.
    pub(crate) redis_servers: u64,
}

/// The connections to Redis, of all processes of a role.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Connections {
    pub(crate) producers: u64,
    pub(crate) managers: u64,
    pub(crate) consumers: u64,
    /// The lowest `maxclients` of each server.
    pub(crate) maxclients: u64,
}

/// The most of a core that a Redis process should be busy: the rest is for bursts and for operators.
const BUSY: f64 = 0.6;

/// The payload of the messages behind the figures of memory.
const MEASURED_PAYLOAD: u64 = 100;
/// The ordering key of these messages.
const MEASURED_KEY: u64 = 8;
/// The part of the slots of hash tables that were in use when they were measured.
const MEASURED_FILL: f64 = 0.95;
/// The length of an id that Lisa generates.
const ID: u64 = 22;

/// Estimates the needs of a load.
pub(crate) fn estimate(load: &Load) -> Estimate {
    let connections = connections(load);
    let redis = redis(load, &connections);
    Estimate {
        redis,
        cores: cores(load),
        connections,
    }
}

fn redis(load: &Load, connections: &Connections) -> Redis {
    let collected = (load.sends * load.outage.as_secs_f64()).ceil();
    let waiting = load.waiting as f64 * waiting(load) + tables(load, load.waiting);
    let outage = collected * waiting_or_ready(load);
    let garbage = load.garbage as f64 * load.groups.max(1) as f64 * garbage(load);
    let ended = match load.own_ids {
        true => load.sends * load.dedup_window.as_secs_f64() * ENDED_ID,
        false => 0.0,
    };
    let streams = load.groups as f64 * STREAM;
    let topics = load.topics as f64 * (HISTORY + load.shards as f64 * (SHARD + streams));
    let open = connections.producers + connections.managers + connections.consumers;
    let connections = open as f64 * CONNECTION;
    let server = load.servers as f64 * SERVER;
    let parts = Parts {
        waiting: bytes(waiting),
        outage: bytes(outage),
        garbage: bytes(garbage),
        ended_ids: bytes(ended),
        topics: bytes(topics),
        connections: bytes(connections),
        server: bytes(server),
    };
    let memory = waiting + outage + garbage + ended + topics + connections + server;

    let stored = load.waiting as f64 + collected + load.garbage as f64;
    let snapshot = stored * snapshot_of(load) + topics / 2.0 + ended / 2.0;
    let maxmemory = memory / FILL;
    // A snapshot takes so long, and each message changes so many pages meanwhile; no page is copied twice.
    let seconds = snapshot / SNAPSHOT_SPEED;
    let changed = seconds * (load.sends + load.deliveries) * PAGES * PAGE;
    let copied = changed.min(memory);
    let written = load.sends * log_of(load) + load.deliveries * LOG_DELIVERY;
    let disk = match load.append_only {
        AppendOnly::Off => snapshot * 2.0,
        // The file of the latest rewrite, as much again until the next one begins, and its result.
        _ => snapshot * 3.0 + REWRITE_FROM + seconds * written,
    };
    Redis {
        memory: bytes(memory),
        of: parts,
        copy_on_write: bytes(copied),
        maxmemory: bytes(maxmemory),
        machine: bytes(maxmemory + copied + SYSTEM),
        snapshot: bytes(snapshot),
        disk: bytes(disk),
        disk_per_second: match load.append_only {
            AppendOnly::Off => 0,
            _ => bytes(written),
        },
    }
}

fn bytes(exact: f64) -> u64 {
    // A float beyond the range saturates.
    exact.ceil() as u64
}

/// Returns the bytes that the allocator of Redis (jemalloc) reserves for this many.
fn allocated(bytes: u64) -> u64 {
    let step = match bytes {
        0..=8 => 8,
        9..=128 => 16,
        // Four sizes between two powers of two.
        _ => bytes.next_power_of_two() / 8,
    };
    bytes.div_ceil(step) * step
}

/// Returns the bytes of a string in Redis, with its header and the byte at its end.
fn string(bytes: u64) -> f64 {
    let header = match bytes {
        0..=31 => 1,
        32..=255 => 3,
        256..=65_535 => 5,
        _ => 9,
    };
    allocated(bytes + header + 1) as f64
}

/// Returns the length of a stored record.
fn record(load: &Load) -> u64 {
    let headers = match load.headers {
        0 => 0,
        // A count, and the lengths of name and value of each; a header has about 30 bytes.
        bytes => 2 + bytes + 3 * bytes.div_ceil(30),
    };
    2 + headers + load.payload
}

/// Returns the difference between the record and key of this load and those of the measured messages.
fn beyond_measured(load: &Load) -> f64 {
    let record = string(record(load)) - string(2 + MEASURED_PAYLOAD);
    let key = match load.key {
        0 => 0.0,
        // The key is at the end of a short record of options.
        length => string(20 + length) - string(20 + MEASURED_KEY),
    };
    record + key
}

/// The number of hash tables that have each waiting message: records and due times, and options if there is a key.
fn hash_tables(load: &Load) -> f64 {
    if load.key > 0 { 3.0 } else { 2.0 }
}

/// Returns the memory of a waiting message without its slots in hash tables.
fn waiting(load: &Load) -> f64 {
    let measured = if load.key > 0 { WAITING_KEY } else { WAITING };
    measured - hash_tables(load) * SLOT / MEASURED_FILL + beyond_measured(load)
}

/// Returns the memory of the hash tables of this many messages: a table has a power of two of slots.
fn tables(load: &Load, messages: u64) -> f64 {
    let shards = (load.topics * load.shards).max(1);
    let each = messages.div_ceil(shards);
    let slots = each.checked_next_power_of_two().unwrap_or(u64::MAX);
    shards as f64 * slots as f64 * SLOT * hash_tables(load)
}

/// Returns the memory of a message that is due and that no consumer takes.
fn waiting_or_ready(load: &Load) -> f64 {
    let of_group = READY - (HASH_ENTRY + SLOT / MEASURED_FILL + string(2 + MEASURED_PAYLOAD));
    let counted = READY_TWO_GROUPS - READY - of_group;
    let ready = if load.key > 0 { READY_KEY } else { READY };
    let ready = match load.groups {
        0 | 1 => ready,
        groups => ready + counted + (groups - 1) as f64 * of_group,
    };
    let full = hash_tables(load) * SLOT * (2.0 - 1.0 / MEASURED_FILL);
    (ready + beyond_measured(load)).max(waiting(load)) + full
}

/// Returns the memory of a message in garbage (dead letters) of a group.
fn garbage(load: &Load) -> f64 {
    GARBAGE + beyond_measured(load)
}

/// Returns the bytes of a message in a snapshot.
fn snapshot_of(load: &Load) -> f64 {
    let options = match load.key {
        0 => 0,
        length => ID + 2 + 20 + length + 13,
    };
    // The record under its id, and the id with its due time, each with its length.
    (record(load) + 3 + 2 * (ID + 1) + 8 + options) as f64
}

/// Returns the bytes that a send appends to the append-only file.
fn log_of(load: &Load) -> f64 {
    LOG_SEND + (record(load) + load.key) as f64
}

fn cores(load: &Load) -> Cores {
    let (send_log, deliver_log) = match load.append_only {
        AppendOnly::Off => (1.0, 1.0),
        AppendOnly::Everysec => (
            SEND_EVERYSEC / SEND_NO_AOF,
            DELIVER_EVERYSEC / DELIVER_NO_AOF,
        ),
        AppendOnly::Always => (SEND_ALWAYS / SEND_NO_AOF, DELIVER_ALWAYS / DELIVER_NO_AOF),
    };
    let (send_key, deliver_key) = match load.key {
        0 => (1.0, 1.0),
        _ => (SEND_KEY / SEND_PLAIN, DELIVER_KEY / DELIVER),
    };
    let kib = (load.payload + load.headers) as f64 / 1024.0;
    let of_kib = |small: f64, large: f64| (large - small) / (10.0 - 100.0 / 1024.0) * kib;
    let batched = |one: f64, many: f64| many + (one - many) / load.batch as f64;
    // The cost of a long zset grows with its depth and with the misses of the processor's caches.
    let deep = (BACKLOG_LARGE - BACKLOG_SMALL) * (load.waiting as f64 / 5e6).sqrt();
    let send = batched(SEND_ONE, SEND_BATCHED) * send_log * send_key
        + of_kib(SEND_100_B, SEND_10_KIB)
        + deep;
    let deliver = match load.pull {
        true => batched(PULL_ONE, PULL_BATCHED),
        false => DELIVER,
    };
    let deliver = deliver * deliver_log * deliver_key + of_kib(DELIVER_100_B, DELIVER_10_KIB);
    let first = load.deliveries.min(load.sends);
    let further = (DELIVER_TWO_GROUPS - DELIVER) / DELIVER * deliver;
    let shards = (load.topics * load.shards) as f64;
    let idle = shards * load.consumers.max(1) as f64 * IDLE / 100.0 / 100.0;
    // The measured messages had no features, and nothing was appended.
    let measured = SEND_PLAIN + DELIVER;
    let more = (send + deliver - measured).max(0.0);
    let redis =
        busy(load.sends) + first * more / 1e6 + (load.deliveries - first) * further / 1e6 + idle;
    // Few messages cost a process a call and a wake-up each, as they cost Redis; many share them.
    let of_process = |rate: f64| busy(rate) * (MANAGER_500 - IDLE_MANAGER_1000) / BUSY_500;
    Cores {
        redis,
        producers: load.sends * batched(PRODUCER_ONE, PRODUCER_BATCHED) / 1e6,
        managers: of_process(load.sends) + shards * IDLE_MANAGER_1000 / 100.0 / 1000.0,
        consumers: match load.pull {
            true => load.deliveries * batched(GATEWAY_ONE, GATEWAY_BATCHED) / 1e6,
            false => of_process(load.deliveries) + load.deliveries * SINK / 1e6,
        },
        redis_servers: ((redis / BUSY).ceil() as u64).max(1),
    }
}

/// Returns the cores that Redis uses for plain messages at this rate: the more messages, the more of them share a call.
fn busy(rate: f64) -> f64 {
    const POINTS: [(f64, f64); 5] = [
        (20.0, BUSY_20 / 100.0),
        (500.0, BUSY_500 / 100.0),
        (2000.0, BUSY_2000 / 100.0),
        (10_000.0, BUSY_10000 / 100.0),
        (SATURATED_RATE, SATURATED_RATE * SATURATED / 1e6),
    ];
    let (first, last) = (POINTS[0], POINTS[POINTS.len() - 1]);
    if rate <= first.0 {
        return rate / first.0 * first.1;
    }
    let between = POINTS.windows(2).find(|pair| rate <= pair[1].0);
    match between {
        // A power of the rate between two measured points.
        Some(pair) => {
            let [(low, at_low), (high, at_high)] = [pair[0], pair[1]];
            at_low * (rate / low).powf((at_high / at_low).ln() / (high / low).ln())
        }
        None => last.1 * rate / last.0,
    }
}

/// Counts the connections, as `shared/docs/internals/architecture.md` lists them.
fn connections(load: &Load) -> Connections {
    let durable = u64::from(load.durability != Durability::Memory);
    let streams = load.topics * load.shards * load.groups;
    let producers = load.producers * load.servers * (1 + durable);
    let managers = load.managers * load.servers * (2 + durable);
    let consumers = load.consumers * (streams + 3 * load.servers);
    let processes = load.producers + load.managers + load.consumers;
    // The read connections spread over the servers; the rest is the same at each.
    let reads = (load.consumers * streams).div_ceil(load.servers.max(1));
    Connections {
        producers,
        managers,
        consumers,
        maxclients: (reads + 10 * processes).max(10_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocator_has_four_sizes_between_two_powers_of_two() {
        for (bytes, reserved) in [
            (1, 8),
            (9, 16),
            (106, 112),
            (129, 160),
            (161, 192),
            (1026, 1280),
            (4096, 4096),
        ] {
            assert_eq!(allocated(bytes), reserved, "{bytes}");
        }
    }

    #[test]
    fn more_messages_keep_redis_busier_and_share_more_calls() {
        let mut before = (0.0, f64::INFINITY);
        for rate in [
            1.0, 20.0, 300.0, 500.0, 1999.0, 2000.0, 5000.0, 50_000.0, 82_331.0, 200_000.0,
        ] {
            let busy = busy(rate);
            assert!(busy > before.0, "{rate}: {busy}");
            assert!(busy / rate <= before.1 * 1.001, "{rate}: {busy}");
            before = (busy, busy / rate);
        }
    }
}
