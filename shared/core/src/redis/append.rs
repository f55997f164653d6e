//! Appends to streams that are not the relay's own.

use std::time::Duration;

use futures_util::future::join_all;
use redis::{Arg, Cmd, Pipeline, Value, cmd};
use tokio::time::Instant;

use super::{Connection, ConnectionError, ServerId};

/// The largest size of a request, in bytes, unless one entry is larger. On a slow network, each request has to arrive within
/// the response timeout.
const MAX_REQUEST: usize = 256 * 1024;

/// An entry to append to a stream.
#[derive(Debug)]
pub struct StreamEntry {
    stream: String,
    append: Cmd,
}

impl StreamEntry {
    /// Creates an entry. Appending it trims the stream to about `max_length` entries.
    pub fn new<'f>(
        stream: String,
        max_length: Option<u64>,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) -> Self {
        let mut append = cmd("XADD");
        append.arg(&stream);
        if let Some(most) = max_length {
            append.arg("MAXLEN").arg("~").arg(most);
        }
        append.arg("*");
        for (name, value) in fields {
            append.arg(name).arg(value);
        }
        Self { stream, append }
    }

    fn size(&self) -> usize {
        let size = |arg: Arg<&[u8]>| match arg {
            Arg::Simple(bytes) => bytes.len(),
            _ => 0,
        };
        self.append.args_iter().map(size).sum()
    }
}

/// Entries that are appended together.
struct Request<T> {
    /// The server that holds their streams, if it is known.
    server: Option<ServerId>,
    size: usize,
    appends: Pipeline,
    /// The stream and the tag of each entry.
    entries: Vec<(String, T)>,
}

impl Connection {
    /// Appends entries to their streams with few requests, and calls `done` with the tag and the result of each entry as soon
    /// as it is known. If a reply is lost, entries are appended again and may be in their streams twice. The order of the
    /// entries is not kept.
    ///
    /// The result is the last failure when `deadline` has passed, or immediately if the same request cannot succeed later.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not undo the commands: Redis may have run them, or may still run them.
    pub async fn append<T>(
        &self,
        entries: Vec<(StreamEntry, T)>,
        deadline: Duration,
        done: impl Fn(T, Result<(), ConnectionError>),
    ) {
        let end = Instant::now() + deadline;
        let requests = self.requests(entries).into_iter();
        join_all(requests.map(|request| self.append_together(request, end, &done))).await;
    }

    fn requests<T>(&self, entries: Vec<(StreamEntry, T)>) -> Vec<Request<T>> {
        let mut requests: Vec<Request<T>> = Vec::new();
        for (entry, tag) in entries {
            let server = self.owner_of(&entry.stream);
            let size = entry.size();
            let has_space = |request: &Request<T>| {
                request.server == server && request.size + size <= MAX_REQUEST
            };
            let request = match requests.iter().rposition(has_space) {
                Some(index) => &mut requests[index],
                None => requests.push_mut(Request {
                    server,
                    size: 0,
                    appends: Pipeline::new(),
                    entries: Vec::new(),
                }),
            };
            request.size += size;
            request.appends.add_command(entry.append);
            request.entries.push((entry.stream, tag));
        }
        requests
    }

    async fn append_together<T>(
        &self,
        request: Request<T>,
        end: Instant,
        done: &impl Fn(T, Result<(), ConnectionError>),
    ) {
        let left = || end.saturating_duration_since(Instant::now());
        let replies = match &request.server {
            Some(id) => {
                let server = self.server(id);
                server.pipeline_each(&request.appends, left()).await
            }
            None => Ok(Vec::new()),
        };
        let mut replies = match replies {
            Ok(replies) => replies.into_iter(),
            Err(error) => {
                for (_, tag) in request.entries {
                    done(tag, Err(error.clone()));
                }
                return;
            }
        };
        let mut again = Vec::new();
        for (append, (stream, tag)) in request.appends.cmd_iter().zip(request.entries) {
            match replies.next() {
                Some(Value::ServerError(_)) | None => again.push((append, stream, tag)),
                Some(_) => done(tag, Ok(())),
            }
        }
        // Alone, an append follows its stream to another server, and is retried as its error requires.
        let alone = async |(append, stream, tag)| {
            let appended = self.at(stream).call(append, left()).await;
            done(tag, appended.map(drop));
        };
        join_all(again.into_iter().map(alone)).await;
    }
}
