//! The ceiling: the commands that any relay with this layout must run, one kind at a time, 500 messages per command,
//! without any logic around them.
//!
//! The sum of their costs to the server is the least that a message can cost. Ids, records, entries and random due times are
//! like those of the stage that is compared with it, and so are the sizes of the structures: a sorted set of 100,000 costs
//! more than one of a few thousand.

use std::time::Duration;

use lisa_core::message::{MessageId, Record};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value, cmd};

use crate::lab::{Lab, Sample};
use crate::lisa::{SOON, payload};

/// Messages of a command.
const BATCH: usize = 500;
/// Messages in the structures while all stages run at once: as many as are sent within the time after which they are due.
pub(crate) const SOME: u64 = 4_000;
/// Pipelines in flight at a time.
const PIPELINES: usize = 4;
/// The timed stages, in the order of a message's life.
pub(crate) const STAGES: [&str; 9] = [
    "HSET",
    "ZADD",
    "ZRANGE + ZREMRANGEBYRANK",
    "XADD",
    "XREADGROUP",
    "HMGET",
    "XACK",
    "XDEL",
    "HDEL",
];

/// A message as its commands need it.
struct Item {
    id: String,
    due: u64,
}

/// Times all stages for `n` messages, in parts of [`SOME`] that end before the next begins; a sample for each of
/// [`STAGES`].
pub(crate) async fn stages_of_some(lab: &Lab, n: u64, size: usize) -> Vec<Sample> {
    let mut parts = Vec::new();
    for _ in 0..n.div_ceil(SOME) {
        lab.flush().await;
        parts.push(stages(lab, SOME, SOON, size).await);
    }
    let stage = |index: usize| parts.iter().map(move |part| part[index]);
    (0..STAGES.len())
        .map(|index| Sample::sum(&stage(index).collect::<Vec<_>>()))
        .collect()
}

/// Times all stages for `n` messages on an empty server, due at random within `soon`; a sample for each of [`STAGES`].
pub(crate) async fn stages(lab: &Lab, n: u64, soon: Duration, size: usize) -> Vec<Sample> {
    let start = lab.ask::<(u64, u64)>(&cmd("TIME")).await.0 * 1000;
    let item = |_| Item {
        id: MessageId::generate().to_string(),
        due: start + fastrand::u64(0..soon.as_millis() as u64),
    };
    let mut items: Vec<Item> = (0..n).map(item).collect();
    let record = record(size);
    let (zset, hash, stream) = ("bench:waiting", "bench:payload", "bench:ready");
    lab.ask::<()>(
        cmd("XGROUP")
            .arg("CREATE")
            .arg(stream)
            .arg("g")
            .arg("0")
            .arg("MKSTREAM"),
    )
    .await;
    let mut samples = Vec::new();

    let hset = batches(&items, |items, pipe| {
        let hset = pipe.cmd("HSET").arg(hash);
        for item in items {
            hset.arg(&item.id).arg(&record);
        }
    });
    samples.push(timed(lab, n, hset).await);
    let zadd = batches(&items, |items, pipe| {
        let zadd = pipe.cmd("ZADD").arg(zset);
        for item in items {
            zadd.arg(item.due).arg(&item.id);
        }
    });
    samples.push(timed(lab, n, zadd).await);

    let range = batches(&items, |items, pipe| {
        pipe.cmd("ZRANGE").arg(zset).arg("-inf").arg("+inf");
        pipe.arg("BYSCORE").arg("LIMIT").arg(0).arg(items.len());
        pipe.arg("WITHSCORES");
        pipe.cmd("ZREMRANGEBYRANK").arg(zset).arg(0);
        pipe.arg(items.len() - 1);
    });
    samples.push(timed(lab, n, range).await);
    items.sort_by_key(|item| item.due);
    let xadd = batches(&items, |items, pipe| {
        for item in items {
            pipe.cmd("XADD").arg(stream).arg("*").arg("i").arg(&item.id);
            pipe.arg("d").arg(item.due);
        }
    });
    samples.push(timed(lab, n, xadd).await);

    let mut entries = Vec::new();
    samples.push(lab.timed(n, read(lab, stream, n, &mut entries)).await);
    let hmget = batches(&items, |items, pipe| {
        let hmget = pipe.cmd("HMGET").arg(hash);
        for item in items {
            hmget.arg(&item.id);
        }
    });
    samples.push(timed(lab, n, hmget).await);

    let xack = batches(&entries, |entries, pipe| {
        pipe.cmd("XACK").arg(stream).arg("g").arg(entries);
    });
    samples.push(timed(lab, n, xack).await);
    let xdel = batches(&entries, |entries, pipe| {
        pipe.cmd("XDEL").arg(stream).arg(entries);
    });
    samples.push(timed(lab, n, xdel).await);
    let hdel = batches(&items, |items, pipe| {
        let hdel = pipe.cmd("HDEL").arg(hash);
        for item in items {
            hdel.arg(&item.id);
        }
    });
    samples.push(timed(lab, n, hdel).await);

    for key in [zset, hash] {
        let left: u64 = lab.ask(cmd("EXISTS").arg(key)).await;
        assert_eq!(left, 0, "{key} is empty when all is done");
    }
    samples
}

/// The stages of a send; a drain consists of the others.
pub(crate) const SEND: usize = 2;

/// Returns the server time of these stages for one message, in µs.
pub(crate) fn sum_us(samples: &[Sample]) -> f64 {
    samples.iter().map(Sample::cpu_us).sum()
}

/// The record of a message, as Redis keeps it.
pub(crate) fn record(size: usize) -> Vec<u8> {
    let record = Record {
        payload: payload(size).into(),
        ..Record::default()
    };
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

/// Packs the commands for each batch before the clock runs.
fn batches<T>(items: &[T], pack: impl Fn(&[T], &mut Pipeline)) -> Vec<Pipeline> {
    let batch = |items: &[T]| {
        let mut pipe = redis::pipe();
        pack(items, &mut pipe);
        pipe
    };
    items.chunks(BATCH).map(batch).collect()
}

async fn timed(lab: &Lab, n: u64, pipelines: Vec<Pipeline>) -> Sample {
    let connection = lab.connection();
    let sender = |turn: usize| {
        let mine = pipelines.iter().skip(turn).step_by(PIPELINES);
        let mut connection = connection.clone();
        async move {
            for pipeline in mine {
                let replies = pipeline.query_async::<Vec<Value>>(&mut connection).await;
                replies.expect("the server obeys");
            }
        }
    };
    let senders = futures_util::future::join_all((0..PIPELINES).map(sender));
    let work = async {
        senders.await;
    };
    lab.timed(n, work).await
}

/// Reads the whole stream and keeps the entries' ids.
async fn read(lab: &Lab, stream: &str, n: u64, entries: &mut Vec<String>) {
    let mut connection = lab.connection();
    let mut replies = Vec::new();
    for _ in 0..n.div_ceil(BATCH as u64) {
        replies.push(next(&mut connection, &read_command(stream, BATCH as u64)).await);
    }
    for reply in replies {
        entries.extend(read_ids(reply).into_iter().map(|(entry, _)| entry));
    }
}

async fn next(connection: &mut MultiplexedConnection, read: &Cmd) -> Value {
    let reply = read.query_async(connection).await;
    reply.expect("the server obeys")
}

/// Reads up to `batch` new entries, and waits up to 50 ms for the first.
pub(crate) fn read_command(stream: &str, batch: u64) -> Cmd {
    let mut read = cmd("XREADGROUP");
    read.arg("GROUP").arg("g").arg("c").arg("COUNT").arg(batch);
    read.arg("BLOCK").arg(50);
    read.arg("STREAMS").arg(stream).arg(">");
    read
}

/// The entry ids and message ids in the reply to [`read_command`]; nothing if there was nothing to read.
pub(crate) fn read_ids(reply: Value) -> Vec<(String, String)> {
    type Entry = (String, Vec<(String, String)>);
    let streams: Option<Vec<(String, Vec<Entry>)>> =
        redis::from_redis_value(reply).expect("entries as they were added");
    let entries = streams
        .into_iter()
        .flatten()
        .flat_map(|(_, entries)| entries);
    // The id is the first field of an entry.
    let ids = entries.map(|(entry, mut fields)| (entry, fields.swap_remove(0).1));
    ids.collect()
}
