//! The `stdout` sink: writes each delivery as one line of JSON.
//!
//! ```text
//! {"topic":"orders","group":"billing","id":"7","attempt":1,"max_attempts":16,"due_at":"2026-11-21T09:30:00.000Z",
//!  "delivered_at":"2026-11-21T09:30:00.002Z","lateness_ms":2,"headers":{},"payload":"hello"}
//! ```
//! `"late":true` follows `lateness_ms` if the delivery is late. A payload that is not UTF-8 is in `payload_base64` instead.
//!
//! One thread writes whole lines, and flushes when no more are queued. A message is acknowledged once its line is
//! flushed. The sink does not know what the reader of the pipe does with the line.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lisa_consumer_core::{Context, Delivery, Handler, Outcome};
use lisa_core::message::Headers;
use lisa_core::outage::Outage;
use lisa_core::time::{UnixMs, millis};
use serde::{Serialize, Serializer};
use tokio::sync::{mpsc, oneshot};

use super::SinkError;

/// The number of lines that may wait for the writer, and that one flush may cover.
const QUEUE: usize = 1024;

/// Writes each delivery as a line of JSON. Cheap to clone; the clones share one writer.
#[derive(Clone, Debug)]
pub struct StdoutSink {
    lines: mpsc::Sender<Line>,
}

#[derive(Debug)]
struct Line {
    text: Vec<u8>,
    written: oneshot::Sender<Result<(), Arc<std::io::Error>>>,
}

impl StdoutSink {
    /// Starts the writer thread, which ends when the last clone of the sink is dropped.
    ///
    /// Several sinks may write to [`std::io::stdout()`]: each batch is one `write_all`, which holds the process-wide lock.
    ///
    /// # Errors
    /// [`SinkError::Thread`] if the system cannot start another thread.
    pub fn new(writer: impl Write + Send + 'static) -> Result<Self, SinkError> {
        let (lines, queue) = mpsc::channel(QUEUE);
        std::thread::Builder::new()
            .name("lisa-stdout".to_owned())
            .spawn(move || write_lines(queue, writer))
            .map_err(SinkError::Thread)?;
        Ok(Self { lines })
    }
}

/// # Cancel safety
/// After the future is dropped, its line is written whole or not at all.
#[async_trait]
impl Handler for StdoutSink {
    async fn handle(&self, delivery: Delivery, _: Context) -> Outcome {
        let text = match to_line(&delivery) {
            Ok(text) => text,
            Err(error) => return Outcome::retry(format!("cannot encode as JSON: {error}")),
        };
        let (written, done) = oneshot::channel();
        if self.lines.send(Line { text, written }).await.is_err() {
            return Outcome::retry("the writer thread of stdout has ended");
        }
        match done.await {
            Ok(Ok(())) => Outcome::Ack,
            Ok(Err(error)) => Outcome::retry(format!("cannot write to stdout: {error}")),
            Err(_) => Outcome::retry("the writer thread of stdout has ended"),
        }
    }
}

/// Writes all queued lines with one call, flushes, and reports the result to the waiting handlers.
fn write_lines(mut queue: mpsc::Receiver<Line>, mut writer: impl Write) {
    let mut batch = VecDeque::new();
    let mut buffer = Vec::new();
    let mut outage = Outage::new("write to standard output");
    while let Some(line) = queue.blocking_recv() {
        batch.push_back(line);
        while batch.len() < QUEUE
            && let Ok(line) = queue.try_recv()
        {
            batch.push_back(line);
        }
        // The handlers of these lines were dropped: their messages come again.
        batch.retain(|line| !line.written.is_closed());

        buffer.clear();
        if outage.is_on() {
            // The write that failed may have left half a line.
            buffer.push(b'\n');
        }
        for line in &batch {
            buffer.extend_from_slice(&line.text);
        }
        let result = writer
            .write_all(&buffer)
            .and_then(|()| writer.flush())
            .map_err(Arc::new);
        match &result {
            Ok(()) => outage.recovered(),
            Err(error) => {
                outage.failed(&**error);
            }
        }
        for line in batch.drain(..) {
            // An error means that the handler was dropped in the meantime.
            let _ = line.written.send(result.clone());
        }
    }
}

#[derive(Serialize)]
struct Printed<'a> {
    topic: &'a str,
    group: &'a str,
    id: &'a str,
    attempt: u32,
    max_attempts: u32,
    #[serde(serialize_with = "rfc3339")]
    due_at: UnixMs,
    #[serde(serialize_with = "rfc3339")]
    delivered_at: UnixMs,
    lateness_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<bool>,
    headers: &'a Headers,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

fn rfc3339<S: Serializer>(at: &UnixMs, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(at)
}

/// Encodes a delivery as a line, including the line break.
fn to_line(delivery: &Delivery) -> serde_json::Result<Vec<u8>> {
    let payload = std::str::from_utf8(&delivery.payload).ok();
    let printed = Printed {
        topic: delivery.topic.as_str(),
        group: delivery.group.as_str(),
        id: delivery.id.as_str(),
        attempt: delivery.attempt,
        max_attempts: delivery.max_attempts,
        due_at: delivery.due_at,
        delivered_at: delivery.delivered_at,
        lateness_ms: millis(delivery.lateness()),
        late: delivery.late.then_some(true),
        headers: &delivery.headers,
        payload,
        payload_base64: payload
            .is_none()
            .then(|| STANDARD.encode(&delivery.payload)),
    };
    let mut line = serde_json::to_vec(&printed)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, PipeReader};
    use std::sync::Mutex;

    use futures_util::future::join_all;

    use super::*;
    use crate::tests::{context, delivery};

    fn pipe() -> (StdoutSink, BufReader<PipeReader>) {
        let (reader, writer) = std::io::pipe().unwrap();
        (StdoutSink::new(writer).unwrap(), BufReader::new(reader))
    }

    #[tokio::test]
    async fn a_delivery_is_one_line_of_json() {
        let (sink, mut reader) = pipe();
        let mut delivery = delivery("two\nlines \u{2028} \"ä\"");
        let headers = Arc::make_mut(&mut delivery.headers);
        headers.insert("Tenant", "a b").unwrap();
        assert_eq!(sink.handle(delivery, context()).await, Outcome::Ack);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(
            line,
            concat!(
                r#"{"topic":"orders","group":"billing","id":"order-7","attempt":2,"max_attempts":16,"#,
                r#""due_at":"2023-11-14T22:13:20.000Z","delivered_at":"2023-11-14T22:13:20.005Z","lateness_ms":5,"#,
                r#""headers":{"tenant":"a b"},"payload":"two\nlines "#,
                "\u{2028}",
                r#" \"ä\""}"#,
                "\n"
            )
        );
    }

    #[test]
    fn only_a_late_delivery_says_so() {
        let line = |late| {
            let delivery = Delivery {
                late,
                ..delivery("x")
            };
            serde_json::from_slice::<serde_json::Value>(&to_line(&delivery).unwrap()).unwrap()
        };
        assert_eq!(line(true)["late"], true);
        assert_eq!(line(false).get("late"), None);
    }

    #[tokio::test]
    async fn a_payload_that_is_not_text_is_written_in_base64() {
        let (sink, mut reader) = pipe();
        sink.handle(delivery(&b"\xff\0"[..]), context()).await;
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["payload_base64"], "/wA=");
        assert_eq!(line.get("payload"), None);
    }

    /// A writer that shows only flushed bytes.
    #[derive(Clone, Default)]
    struct Flushed {
        buffer: Vec<u8>,
        shown: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Flushed {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Short writes, as a pipe makes them.
            let taken = bytes.len().min(100);
            self.buffer.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.shown.lock().unwrap().append(&mut self.buffer);
            Ok(())
        }
    }

    #[tokio::test]
    async fn many_at_once_are_whole_lines_each_flushed_before_its_ack() {
        let writer = Flushed::default();
        let shown = Arc::clone(&writer.shown);
        let sink = StdoutSink::new(writer).unwrap();
        let handled = (0..2000).map(|n| {
            let (sink, shown) = (sink.clone(), Arc::clone(&shown));
            async move {
                let payload = format!("number {n} {}", "x".repeat(n % 300));
                let outcome = sink.handle(delivery(payload.clone()), context()).await;
                assert_eq!(outcome, Outcome::Ack);
                let flushed = String::from_utf8(shown.lock().unwrap().clone()).unwrap();
                assert!(flushed.contains(&format!("\"{payload}\"")), "{payload}");
            }
        });
        join_all(handled).await;
        let text = String::from_utf8(shown.lock().unwrap().clone()).unwrap();
        let numbers: std::collections::BTreeSet<u32> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a whole line"))
            .map(|line| {
                let payload = line["payload"].as_str().unwrap().to_owned();
                payload.split(' ').nth(1).unwrap().parse().unwrap()
            })
            .collect();
        assert_eq!(text.lines().count(), 2000);
        assert_eq!(numbers.len(), 2000);
    }

    #[tokio::test]
    async fn a_broken_pipe_is_a_retry_every_time() {
        let (sink, reader) = pipe();
        drop(reader);
        for _ in 0..2 {
            let outcome = sink.handle(delivery("x"), context()).await;
            let Outcome::Retry { after: None, error } = outcome else {
                panic!("{outcome:?}");
            };
            assert!(
                error.contains("cannot write to stdout: Broken pipe"),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn a_line_after_a_torn_one_starts_on_its_own() {
        /// Takes five bytes of the first write, then fails once.
        struct Torn(Arc<Mutex<Vec<u8>>>, u32);
        impl Write for Torn {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.1 += 1;
                let taken = match self.1 {
                    1 => 5,
                    2 => return Err(std::io::ErrorKind::StorageFull.into()),
                    _ => bytes.len(),
                };
                self.0.lock().unwrap().extend_from_slice(&bytes[..taken]);
                Ok(taken)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let shown = Arc::default();
        let sink = StdoutSink::new(Torn(Arc::clone(&shown), 0)).unwrap();
        let first = sink.handle(delivery("a"), context()).await;
        assert!(matches!(first, Outcome::Retry { .. }), "{first:?}");
        assert_eq!(sink.handle(delivery("b"), context()).await, Outcome::Ack);
        let text = String::from_utf8(shown.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], r#"{"top"#);
        assert!(lines[1].ends_with(r#""payload":"b"}"#), "{text}");
    }
}
