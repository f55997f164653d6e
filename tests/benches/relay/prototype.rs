//! The batched prototype: the four stages in the fewest and largest calls that the layout allows, all at once in this
//! process. It has no handlers, retries, classes, counters or anything else that a relay needs.
//!
//! Sends and acknowledgements are transactions of variadic commands, a move is a script, a read fetches the records. The
//! number of messages per call is 500, or 200 as in Lisa's moves.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lisa_core::message::MessageId;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Script, Value, cmd};
use tokio::sync::mpsc;

use crate::ceiling::{read_command, read_ids, record};
use crate::lab::{Lab, Sample};
use crate::lisa::{BATCH, SENDERS, SOON, at_once};

const MOVE: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[1], 'WITHSCORES')
for i = 1, #due, 2 do
  redis.call('XADD', KEYS[2], '*', 'i', due[i], 'd', due[i + 1])
end
if #due > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due / 2 - 1)
end
return #due / 2
";
const WAITING: &str = "bench:waiting";
const PAYLOAD: &str = "bench:payload";
const READY: &str = "bench:ready";
/// The mover's pause after less than a full batch was due.
const PAUSE: Duration = Duration::from_millis(1);

/// A load on the prototype.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Messages.
    pub(crate) n: u64,
    /// Bytes of payload.
    pub(crate) size: usize,
    /// The most messages per call, except for sends, which are batches of 500 like Lisa's.
    pub(crate) batch: u64,
}

/// Times all stages at once.
pub(crate) async fn all_at_once(lab: &Lab, load: Load) -> Sample {
    let Load { n, size, batch } = load;
    let mut create = cmd("XGROUP");
    create.arg("CREATE").arg(READY).arg("g").arg("0");
    lab.ask::<()>(create.arg("MKSTREAM")).await;
    let connect = || lab.connect();
    let (sender, mover) = (connect().await, connect().await);
    let (reader, acker) = (connect().await, connect().await);
    let (read, settle) = mpsc::channel(8);
    let work = async {
        let moving = tokio::spawn(move_all(mover, n, batch));
        let reading = tokio::spawn(read_all(reader, read, n, batch));
        let settling = tokio::spawn(settle_all(acker, settle));
        send_all(sender, n, size).await;
        for stage in [moving, reading, settling] {
            stage.await.expect("the stage ends");
        }
    };
    let sample = lab.timed(n, work).await;
    let left: u64 = lab.ask(cmd("EXISTS").arg(WAITING).arg(PAYLOAD)).await;
    assert_eq!(left, 0, "all is gone when all is done");
    sample
}

async fn send_all(connection: MultiplexedConnection, n: u64, size: usize) {
    let record = Arc::new(record(size));
    let next = Arc::new(AtomicU64::new(0));
    let sender = |_| {
        let (record, next) = (record.clone(), next.clone());
        let mut connection = connection.clone();
        async move {
            loop {
                let from = next.fetch_add(BATCH, Ordering::Relaxed);
                if from >= n {
                    break;
                }
                let pipe = send(from..n.min(from + BATCH), &record);
                let sent = pipe.query_async::<()>(&mut connection).await;
                sent.expect("sent");
            }
        }
    };
    at_once((0..SENDERS).map(sender)).await;
}

/// A transaction that stores messages with one record, due soon.
fn send(numbers: Range<u64>, record: &[u8]) -> Pipeline {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("after 1970").as_millis() as u64;
    let ids: Vec<MessageId> = numbers.map(|_| MessageId::generate()).collect();
    let mut pipe = redis::pipe();
    let zadd = pipe.atomic().cmd("ZADD").arg(WAITING);
    for id in &ids {
        let due = now + fastrand::u64(0..SOON.as_millis() as u64);
        zadd.arg(due).arg(id.as_str());
    }
    let hset = pipe.cmd("HSET").arg(PAYLOAD);
    for id in &ids {
        hset.arg(id.as_str()).arg(record);
    }
    pipe
}

async fn move_all(mut connection: MultiplexedConnection, n: u64, batch: u64) {
    let script = Script::new(MOVE);
    let mut moved = 0;
    while moved < n {
        let mut call = script.key(WAITING);
        call.key(READY).arg(batch);
        let now: u64 = call.invoke_async(&mut connection).await.expect("moved");
        moved += now;
        if now < batch {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Reads entries and their records, and passes them on as a handler would get them.
async fn read_all(
    mut connection: MultiplexedConnection,
    to: mpsc::Sender<Vec<(String, String)>>,
    n: u64,
    batch: u64,
) {
    let command = read_command(READY, batch);
    let mut done = 0;
    while done < n {
        let reply: Value = command.query_async(&mut connection).await.expect("read");
        let entries = read_ids(reply);
        if entries.is_empty() {
            continue;
        }
        let mut hmget = cmd("HMGET");
        hmget.arg(PAYLOAD);
        for (_, id) in &entries {
            hmget.arg(id);
        }
        let records: Vec<Option<Vec<u8>>> =
            hmget.query_async(&mut connection).await.expect("fetched");
        assert!(records.iter().all(Option::is_some), "each has its record");
        done += entries.len() as u64;
        to.send(entries).await.expect("a task that settles");
    }
}

async fn settle_all(
    mut connection: MultiplexedConnection,
    mut from: mpsc::Receiver<Vec<(String, String)>>,
) {
    while let Some(entries) = from.recv().await {
        let mut pipe = redis::pipe();
        pipe.atomic();
        let xack = pipe.cmd("XACK").arg(READY).arg("g");
        for (entry, _) in &entries {
            xack.arg(entry);
        }
        let xdel = pipe.cmd("XDEL").arg(READY);
        for (entry, _) in &entries {
            xdel.arg(entry);
        }
        let hdel = pipe.cmd("HDEL").arg(PAYLOAD);
        for (_, id) in &entries {
            hdel.arg(id);
        }
        let settled = pipe.query_async::<()>(&mut connection).await;
        settled.expect("settled");
    }
}
