//! Writes log lines to stderr from a thread of its own, so that a log that is full, closed or blocked stops nothing. Lines that
//! cannot be written are lost, and counted.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use tracing_subscriber::fmt::MakeWriter;

/// The number of lines that wait while stderr blocks.
const QUEUE: usize = 4096;
/// The largest total size of these lines, in bytes.
const QUEUED_BYTES: usize = 4 << 20;
/// The interval at which a flush checks for room in the queue.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The longest wait for these lines at the end of the process.
const FLUSH: Duration = Duration::from_secs(1);

/// The writer of this process.
static WRITER: LazyLock<LogWriter> = LazyLock::new(|| LogWriter::start(io::stderr()));
/// The lines that were lost.
static LOST: LazyLock<Counter> = LazyLock::new(Counter::default);

enum Item {
    Line(Vec<u8>),
    /// Asks for an answer once the lines before it are written or lost.
    Flush(SyncSender<()>),
}

/// A queue of log lines. Its writes neither wait nor fail.
#[derive(Clone, Debug)]
pub(super) struct LogWriter {
    queue: SyncSender<Item>,
    /// The size of the lines in the queue, in bytes.
    queued: Arc<AtomicUsize>,
}

impl LogWriter {
    fn start(out: impl Write + Send + 'static) -> Self {
        let (queue, lines) = sync_channel(QUEUE);
        let queued = Arc::new(AtomicUsize::new(0));
        let left = queued.clone();
        let thread = thread::Builder::new().name("log".to_owned());
        if thread
            .spawn(move || write_lines(&lines, &left, out))
            .is_err()
        {
            // Without the thread the queue is closed, and each line counts as lost.
            LOST.inc();
        }
        Self { queue, queued }
    }

    /// Queues a line. Returns false if there is no room for it.
    fn queue(&self, line: &[u8]) -> bool {
        let size = line.len();
        let fits = self.queued.fetch_add(size, Ordering::Relaxed) + size <= QUEUED_BYTES;
        let is_queued = fits && self.queue.try_send(Item::Line(line.to_vec())).is_ok();
        if !is_queued {
            self.queued.fetch_sub(size, Ordering::Relaxed);
        }
        is_queued
    }

    fn flush(&self, longest: Duration) {
        let until = Instant::now() + longest;
        let left = || until.saturating_duration_since(Instant::now());
        let (done, wait) = sync_channel(1);
        let mut request = Item::Flush(done);
        while let Err(TrySendError::Full(item)) = self.queue.try_send(request) {
            if left().is_zero() {
                return;
            }
            request = item;
            thread::sleep(left().min(LOOK_EVERY));
        }
        let _ = wait.recv_timeout(left());
    }
}

impl Write for LogWriter {
    /// Queues one line: the subscriber writes each event with a single call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.queue(line) {
            LOST.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

fn write_lines(lines: &Receiver<Item>, queued: &AtomicUsize, mut out: impl Write) {
    for item in lines {
        match item {
            Item::Line(line) => {
                if out.write_all(&line).is_err() {
                    LOST.inc();
                }
                queued.fetch_sub(line.len(), Ordering::Relaxed);
            }
            // An answer after the time limit is not needed.
            Item::Flush(done) => drop(done.try_send(())),
        }
    }
}

/// Returns the writer of this process, whose thread starts with the first call.
pub(super) fn writer() -> LogWriter {
    WRITER.clone()
}

/// Waits until the log lines so far are written, at most a second. Call it before the process ends.
pub fn flush() {
    if let Some(writer) = LazyLock::get(&WRITER) {
        writer.flush(FLUSH);
    }
}

/// Returns the counter of the log lines that were lost because stderr was closed, full or blocked.
pub(crate) fn lost_lines() -> Counter {
    LOST.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Fails the first writes, then keeps what is written.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (full, written) = &mut *self.0.lock().unwrap();
            if *full > 0 {
                *full -= 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
            written.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_disk_refuses_are_counted_and_later_ones_are_written() {
        let disk = Disk::default();
        disk.0.lock().unwrap().0 = 2;
        let mut writer = LogWriter::start(disk.clone());
        let before = LOST.get();
        for line in ["one\n", "two\n", "three\n"] {
            writer.write_all(line.as_bytes()).unwrap();
        }
        LogWriter::flush(&writer, FLUSH);
        assert_eq!(disk.0.lock().unwrap().1, b"three\n");
        assert!(LOST.get() >= before + 2);
    }

    /// Writes only while nobody holds the lock.
    struct Blocks(Arc<Mutex<()>>);

    impl Write for Blocks {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            drop(self.0.lock());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_blocks_stops_nobody_and_holds_a_bounded_number_of_bytes() {
        for (line, fits) in [(vec![b'x'; 10], QUEUE), (vec![b'x'; QUEUED_BYTES / 8], 8)] {
            let blocked = Arc::new(Mutex::new(()));
            let held = blocked.lock().unwrap();
            let mut writer = LogWriter::start(Blocks(blocked.clone()));
            let before = LOST.get();
            // The thread may have taken one line from the queue.
            for _ in 0..fits + 2 {
                writer.write_all(&line).unwrap();
            }
            assert!(LOST.get() > before);
            assert!(writer.queued.load(Ordering::Relaxed) <= QUEUED_BYTES);
            LogWriter::flush(&writer, Duration::from_millis(10));
            drop(held);
            LogWriter::flush(&writer, Duration::from_mins(1));
            assert_eq!(writer.queued.load(Ordering::Relaxed), 0);
        }
    }
}
