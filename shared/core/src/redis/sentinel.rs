//! Sentinels: the current master of a group.
//!
//! All sentinels are asked at the same time, and the answer of the newest failover counts. A sentinel that is cut off
//! from the others names the old master for as long as that lasts. This module connects to no master itself.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{RedisError, Value, cmd};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::address::{Address, CONNECT, NO_TLS_THERE, hint_of, node_url, plain, tcp, unlimited};
use super::socket::{Dialer, Socket};
use super::{ConnectionError, ConnectionErrorKind, ConnectionSettings};
use crate::secret::Secret;
use crate::sync::Mutex;

/// Time to wait for the other sentinels after the first answer.
const GRACE: Duration = Duration::from_millis(200);
/// Interval between checks for a new master: a master that was cut off from its sentinels reports nothing.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The sentinels of one master group.
pub(super) struct Sentinels {
    group: String,
    all: Vec<Sentinel>,
    username: Option<String>,
    password: Option<Secret>,
    limit: Duration,
    tls: bool,
    dialer: Dialer,
}

struct Sentinel {
    address: Address,
    shown: String,
    /// Kept between requests; taken out during a request, so that a failed one is dropped.
    conn: Mutex<Option<Socket>>,
}

/// The answer of a sentinel about its group.
struct Answer {
    master: Address,
    /// Number of the failover that promoted it to master.
    epoch: u64,
}

impl Sentinels {
    pub(super) fn new(
        settings: &ConnectionSettings,
        dialer: &Dialer,
        nodes: &[Address],
        group: &str,
        tls: bool,
    ) -> Self {
        let all = nodes
            .iter()
            .map(|node| Sentinel {
                address: node.clone(),
                shown: format!("{}:{}", node.0, node.1),
                conn: Mutex::default(),
            })
            .collect();
        Self {
            group: group.to_owned(),
            all,
            username: settings.sentinel_username.clone(),
            password: settings.sentinel_password.clone(),
            limit: settings.connect_timeout,
            tls,
            dialer: dialer.clone(),
        }
    }

    /// Returns the master's address.
    pub(super) async fn master(&self) -> Result<Address, ConnectionError> {
        let mut asked: FuturesUnordered<_> =
            self.all.iter().map(|sentinel| self.ask(sentinel)).collect();
        let mut end = Instant::now() + self.limit;
        let mut newest: Option<Answer> = None;
        let mut refusal = None;
        while let Ok(Some(answer)) = timeout_at(end, asked.next()).await {
            match answer {
                Ok(answer) => {
                    end = end.min(Instant::now() + GRACE);
                    if newest.as_ref().is_none_or(|best| best.epoch < answer.epoch) {
                        newest = Some(answer);
                    }
                }
                Err(error) => refusal = Some(error),
            }
        }
        newest.map(|answer| answer.master).ok_or_else(|| {
            refusal.unwrap_or_else(|| {
                let detail = format!("no sentinel answered within {:?}", self.limit);
                ConnectionError::local(ConnectionErrorKind::Unavailable, CONNECT, detail)
            })
        })
    }

    /// Waits until the master is another than `from`, and returns its address.
    pub(super) async fn changed(&self, from: &Address) -> Address {
        loop {
            sleep(LOOK_EVERY).await;
            if let Ok(master) = self.master().await
                && master != *from
            {
                return master;
            }
        }
    }

    async fn ask(&self, sentinel: &Sentinel) -> Result<Answer, ConnectionError> {
        match timeout(self.limit, self.question(sentinel)).await {
            Ok(Ok(Some(answer))) => Ok(answer),
            Ok(Ok(None)) => {
                let detail = format!(
                    "sentinel {} knows no master named {:?}",
                    sentinel.shown, self.group
                );
                Err(ConnectionError::local(
                    ConnectionErrorKind::Unavailable,
                    CONNECT,
                    detail,
                ))
            }
            Ok(Err(error)) => {
                let hint = hint_of(self.tls, &error).unwrap_or_default();
                let error = ConnectionError::from_redis(CONNECT, error);
                let detail = if error.kind == ConnectionErrorKind::NotSupported {
                    let (host, port) = &sentinel.address;
                    let [server, node] =
                        ["", "+cluster"].map(|kind| node_url(kind, host, *port, self.tls));
                    format!(
                        "this is a server, not a sentinel; use {server}, or {node} for a cluster node"
                    )
                } else {
                    format!("{}{hint}", error.detail)
                };
                Err(ConnectionError {
                    detail: format!("sentinel {}: {detail}", sentinel.shown),
                    maybe_applied: false,
                    ..error
                })
            }
            Err(_) => {
                let hint = if self.tls { NO_TLS_THERE } else { "" };
                let detail = format!("sentinel {}: no answer{hint}", sentinel.shown);
                Err(ConnectionError::local(
                    ConnectionErrorKind::Unavailable,
                    CONNECT,
                    detail,
                ))
            }
        }
    }

    async fn question(&self, sentinel: &Sentinel) -> Result<Option<Answer>, RedisError> {
        let kept = sentinel.conn.lock().take();
        let mut conn = match kept {
            Some(conn) => conn,
            None => self.connect(sentinel).await?,
        };
        // During a failover, this command names the new master first; the other one reports the epoch.
        let named = conn
            .ask(
                cmd("SENTINEL")
                    .arg("GET-MASTER-ADDR-BY-NAME")
                    .arg(&self.group),
            )
            .await?;
        let Value::Array(named) = named else {
            *sentinel.conn.lock() = Some(conn);
            return Ok(None);
        };
        let known = conn
            .ask(cmd("SENTINEL").arg("MASTER").arg(&self.group))
            .await;
        *sentinel.conn.lock() = Some(conn);
        let (host, port): (String, u16) = redis::from_redis_value(Value::Array(named))?;
        Ok(Some(Answer {
            master: (host, port),
            epoch: known.map_or(0, |known| epoch(&known)),
        }))
    }

    async fn connect(&self, sentinel: &Sentinel) -> Result<Socket, RedisError> {
        let addr = tcp(sentinel.address.clone(), self.tls);
        let mut conn = self.dialer.open(&addr, &plain(), unlimited()).await?;
        if let Some(password) = &self.password {
            let mut auth = cmd("AUTH");
            if let Some(username) = &self.username {
                auth.arg(username);
            }
            conn.ask(auth.arg(password.expose())).await?;
        }
        Ok(conn)
    }
}

/// Reads the number of the last failover from a reply to `SENTINEL MASTER`.
fn epoch(known: &Value) -> u64 {
    let Value::Array(fields) = known else {
        return 0;
    };
    fields
        .chunks_exact(2)
        .find_map(|pair| match pair {
            [Value::BulkString(name), Value::BulkString(epoch)] if name == b"config-epoch" => {
                std::str::from_utf8(epoch).ok()?.parse().ok()
            }
            _ => None,
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_is_read_by_name() {
        let text = |text: &str| Value::BulkString(text.into());
        let known = Value::Array(
            ["name", "main", "config-epoch", "7", "x", "y"]
                .map(text)
                .into(),
        );
        assert_eq!(epoch(&known), 7);
        assert_eq!(epoch(&Value::Array(vec![text("config-epoch")])), 0);
        assert_eq!(epoch(&Value::Nil), 0);
    }
}
