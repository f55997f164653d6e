//! The measured figures behind an estimate, each with its origin. All figures are in this table and nowhere else.

use serde::Serialize;

/// A figure of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figure {
    /// The name in the code.
    pub(crate) name: &'static str,
    /// The value.
    pub(crate) value: f64,
    /// The unit.
    pub(crate) unit: &'static str,
    /// The meaning.
    pub(crate) meaning: &'static str,
    /// The place where it was measured: for `make bench`, section, row and column of its report.
    pub(crate) origin: &'static str,
}

macro_rules! figures {
    ($($name:ident = $value:literal $unit:literal, $meaning:literal, $origin:literal;)+) => {
        $(
            #[doc = $meaning]
            pub(super) const $name: f64 = $value;
        )+

        /// All figures, in the order of the table.
        pub(crate) const FIGURES: &[Figure] = &[
            $(Figure {
                name: stringify!($name),
                value: $value,
                unit: $unit,
                meaning: $meaning,
                origin: $origin,
            },)+
        ];
    };
}

// A figure of `make bench` has the origin `make bench: section / row / column`. A test compares it with the report.
figures! {
    WAITING = 306.0 "B", "memory of a waiting message of 100 B", "make bench: Memory / plain / waiting, B";
    WAITING_KEY = 445.0 "B", "the same with an ordering key of 8 B", "make bench: Memory / ordering key / waiting, B";
    READY = 241.0 "B", "memory of a ready message of 100 B", "make bench: Memory / plain / ready, B";
    READY_KEY = 466.0 "B", "the same with an ordering key of 8 B", "make bench: Memory / ordering key / ready, B";
    READY_TWO_GROUPS = 372.0 "B", "memory of a message of 100 B that is ready in two groups", "make bench: Memory / two groups / ready, B";
    SEND_ONE = 9.73 "µs", "Redis time of a send over HTTP, one message per request", "make bench: Sends over HTTP / HTTP, a message a request / server CPU, µs/message";
    SEND_BATCHED = 4.08 "µs", "Redis time of a send over HTTP, 500 messages per request", "make bench: Sends over HTTP / HTTP, NDJSON batches of 500 / server CPU, µs/message";
    PULL_ONE = 39.3 "µs", "Redis time of a delivery by a gateway, one message per request", "make bench: Pulls over HTTP / 50 connections, one a pull / server CPU, µs/message";
    PULL_BATCHED = 6.84 "µs", "Redis time of a delivery by a gateway, 100 messages per request", "make bench: Pulls over HTTP / 50 connections, batches of 100 / server CPU, µs/message";
    SEND_PLAIN = 3.17 "µs", "Redis time of a send to a plain topic, in batches", "make bench: Features / send | plain / server µs/message";
    SEND_KEY = 7.65 "µs", "the same with ordering keys", "make bench: Features / send | ordered, 1,000 keys / server µs/message";
    DELIVER = 5.75 "µs", "Redis time of a delivery from a plain topic, move and settlement included", "make bench: Features / drain | plain / server µs/message";
    DELIVER_KEY = 14.8 "µs", "the same with ordering keys", "make bench: Features / drain | ordered, 1,000 keys / server µs/message";
    DELIVER_TWO_GROUPS = 17.8 "µs", "Redis time of the deliveries of one message to two groups", "make bench: Features / drain | two groups / server µs/message";
    SEND_NO_AOF = 3.26 "µs", "Redis time of a send without an append-only file", "make bench: Durability / send | no append-only file / server µs/message";
    SEND_EVERYSEC = 3.62 "µs", "the same with appendfsync everysec", "make bench: Durability / send | everysec / server µs/message";
    SEND_ALWAYS = 5.80 "µs", "the same with appendfsync always", "make bench: Durability / send | always / server µs/message";
    DELIVER_NO_AOF = 7.01 "µs", "Redis time of a delivery without an append-only file", "make bench: Durability / drain | no append-only file / server µs/message";
    DELIVER_EVERYSEC = 9.96 "µs", "the same with appendfsync everysec", "make bench: Durability / drain | everysec / server µs/message";
    DELIVER_ALWAYS = 20.0 "µs", "the same with appendfsync always", "make bench: Durability / drain | always / server µs/message";
    SEND_100_B = 4.12 "µs", "Redis time of a send of 100 B", "make bench: Payloads / 100 B | 40,000 | send / server µs/message";
    SEND_10_KIB = 31.8 "µs", "Redis time of a send of 10 KiB", "make bench: Payloads / 10 KiB | 4,000 | send / server µs/message";
    DELIVER_100_B = 8.00 "µs", "Redis time of a delivery of 100 B", "make bench: Payloads / 100 B | 40,000 | drain / server µs/message";
    DELIVER_10_KIB = 14.8 "µs", "Redis time of a delivery of 10 KiB", "make bench: Payloads / 10 KiB | 4,000 | drain / server µs/message";
    BACKLOG_SMALL = 9.03 "µs", "Redis time of a send and a move while 10,000 messages wait", "make bench: Backlog / 10,000 / sum";
    BACKLOG_LARGE = 21.2 "µs", "the same while 5,000,000 messages wait", "make bench: Backlog / 5,000,000 / sum";
    IDLE = 0.80 "%", "share of a Redis core of 100 idle topics with one consumer", "make bench: Idle / 1 manager, 1 consumer, 100 topics / CPU server, %";
    PRODUCER_ONE = 32.2 "µs", "CPU time of a producer, one message per request", "make bench: Sends over HTTP / HTTP, a message a request / producer CPU, µs/message";
    PRODUCER_BATCHED = 3.33 "µs", "CPU time of a producer, 500 messages per request", "make bench: Sends over HTTP / HTTP, NDJSON batches of 500 / producer CPU, µs/message";
    GATEWAY_ONE = 111.0 "µs", "CPU time of a gateway, one message per request", "make bench: Pulls over HTTP / 50 connections, one a pull / gateway CPU, µs/message";
    GATEWAY_BATCHED = 9.49 "µs", "CPU time of a gateway, 100 messages per request", "make bench: Pulls over HTTP / 50 connections, batches of 100 / gateway CPU, µs/message";
    SINK = 14.4 "µs", "CPU time of a delivery to the sink redis-stream, including the move", "make bench: Sinks / redis-stream / sink, client µs";
    BUSY_20 = 1.42 "%", "share of a Redis core at 20 messages per second from send to settlement", "make bench: Lateness / 20 messages/s / server CPU, %";
    BUSY_500 = 7.88 "%", "the same at 500 messages per second", "make bench: Lateness / 500 messages/s / server CPU, %";
    BUSY_2000 = 15.6 "%", "the same at 2,000 messages per second", "make bench: Lateness / 2,000 messages/s / server CPU, %";
    BUSY_10000 = 30.2 "%", "the same at 10,000 messages per second", "make bench: Lateness / 10,000 messages/s / server CPU, %";
    SATURATED = 9.56 "µs", "Redis time of a message from send to settlement, as fast as possible", "make bench: Durability / all stages at once | no append-only file / server µs/message";
    SATURATED_RATE = 82331.0 "/s", "the rate at which that was measured", "make bench: Durability / all stages at once | no append-only file / messages/s";
    MANAGER_500 = 11.6 "%", "share of a core of a manager with 1,000 topics at 500 messages per second", "make bench: Dashboard, many tabs / 0 / manager, %";
    IDLE_MANAGER_1000 = 1.46 "%", "share of a core of a manager with 1,000 idle topics", "make bench: Idle / 1 manager, 1000 topics / CPU managers, %";
    SHARD = 1024.0 "B", "memory of an empty shard with one group", "shared/docs/internals/keyspace.md: Sizes";
    STREAM = 600.0 "B", "memory of an empty stream with its group", "an assumption";
    HISTORY = 214000.0 "B", "memory of the history of a topic in constant use", "shared/docs/operate/capacity.md: Memory of the history";
    ENDED_ID = 130.0 "B", "memory of an ended id (tombstone)", "shared/docs/internals/keyspace.md: Sizes";
    GARBAGE = 550.0 "B", "memory of a message of 100 B in garbage, with one failed attempt", "tests/it/costs/size.rs: garbage";
    HASH_ENTRY = 64.0 "B", "memory of an id in a hash, without its value and its slot", "two allocations of 32 B by jemalloc";
    SLOT = 8.0 "B", "memory of a slot of a hash table", "a pointer of 64 bits";
    SERVER = 915000.0 "B", "memory of an empty Redis", "used_memory of Redis 7.0.15 with config/redis.conf";
    CONNECTION = 39000.0 "B", "memory of a connection in use", "used_memory of Redis 7.0.15 with 200 connections";
    LOG_SEND = 100.0 "B", "bytes that a send appends to the append-only file, without its record, in batches", "tests/it/costs/size.rs: bytes written per message";
    LOG_DELIVERY = 400.0 "B", "bytes that a delivery appends to the append-only file, from move to settlement, in batches", "tests/it/costs/size.rs: bytes written per message";
    SNAPSHOT_SPEED = 40000000.0 "B/s", "bytes of a snapshot that Redis writes per second", "Redis 7.0.15, 300,000 messages of 100 B, on a busy machine";
    PAGES = 10.0 "pages", "pages of memory that a send or a delivery changes", "an assumption, a page for each of its entries and their neighbors";
    PAGE = 4096.0 "B", "memory of a page", "Linux on x86-64";
    REWRITE_FROM = 67108864.0 "B", "smallest append-only file that Redis rewrites", "config/redis.conf: auto-aof-rewrite-min-size";
    FILL = 0.8 "of 1", "part of maxmemory that is in use", "an assumption, a fifth is left for bursts";
    SYSTEM = 268435456.0 "B", "memory of the operating system", "an assumption";
}
