//! Durable sends: `WAIT` or `WAITAOF` after the script, on the same connection.
//!
//! Both commands cover only what their own connection wrote before. While one waits, the connection answers nothing
//! else, so each durability has a connection of its own, opened by its first send.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use crate::broker::{Broker, BrokerError};
use crate::durability::Durability;
use crate::permissions;
use crate::redis::preflight::Permission;
use crate::redis::{Connection, ConnectionError, ConnectionErrorKind};
use crate::state::Accepted;
use crate::time::{format_duration, millis};

/// The durability that a call waits for after its script.
#[derive(Clone)]
pub(super) struct Wait {
    pub(super) connection: Connection,
    durability: Durability,
    pub(super) limit: Duration,
    /// The reason why the call has not reached the durability so far, if it has not. Shared by all scripts of one call.
    short: Arc<OnceLock<String>>,
}

impl Wait {
    pub(super) fn command(&self) -> Cmd {
        let limit = millis(self.limit);
        let mut wait = Cmd::new();
        match self.durability {
            Durability::Replicas(count) => wait.arg("WAIT").arg(count).arg(limit),
            Durability::Memory | Durability::Aof => wait.arg("WAITAOF").arg(1).arg(0).arg(limit),
        };
        wait
    }

    /// Returns true if further waiting is pointless: an earlier wait of the call did not reach the durability.
    pub(super) fn is_over(&self) -> bool {
        self.short.get().is_some()
    }

    /// Records the reply that follows a script that has done its work.
    pub(super) fn note(&self, reply: &Value) {
        if let Err(why) = self.check(reply) {
            // The first reason is kept.
            let _ = self.short.set(why);
        }
    }

    /// Checks the reply. Returns the reason as the error if the durability was not reached.
    fn check(&self, reply: &Value) -> Result<(), String> {
        let within = || format_duration(self.limit);
        let why = match (self.durability, reply) {
            (Durability::Replicas(wanted), Value::Int(has)) if *has >= i64::from(wanted) => {
                return Ok(());
            }
            (Durability::Replicas(wanted), Value::Int(has)) => {
                format!(
                    "{has} of {wanted} replicas confirmed it within {}",
                    within()
                )
            }
            (_, Value::Array(numbers)) => match numbers.first() {
                Some(Value::Int(local)) if *local >= 1 => return Ok(()),
                _ => format!("it was not on disk within {}", within()),
            },
            (_, Value::ServerError(error)) => {
                format!(
                    "Redis replied {} {}",
                    error.code(),
                    error.details().unwrap_or_default()
                )
            }
            (_, other) => format!("unexpected reply {other:?}"),
        };
        Err(why)
    }
}

impl Broker {
    /// Returns a broker whose calls wait for a durability, up to `limit`.
    ///
    /// # Errors
    /// [`BrokerError::Unsupported`] if the server lacks the command; [`BrokerError::Connection`], also if the user may
    /// not run it.
    pub(super) async fn with_durability(
        &self,
        durability: Durability,
        limit: Duration,
    ) -> Result<Self, BrokerError> {
        if durability == Durability::Memory {
            return Ok(self.clone());
        }
        let known = self.inner.waiting.lock().get(&durability).cloned();
        let connection = match known {
            Some(connection) => connection,
            None => {
                self.require(durability).await?;
                let connection = self.inner.connection.another()?;
                self.inner
                    .waiting
                    .lock()
                    .entry(durability)
                    .or_insert(connection)
                    .clone()
            }
        };
        Ok(Self {
            inner: self.inner.clone(),
            wait: Some(Wait {
                connection,
                durability,
                limit,
                short: Arc::default(),
            }),
        })
    }

    /// Returns the outcomes of a send if all of it has reached the requested durability.
    ///
    /// # Errors
    /// [`BrokerError::NotDurable`], with the outcomes.
    pub(super) fn confirm_durability(
        &self,
        accepted: Vec<Accepted>,
    ) -> Result<Vec<Accepted>, BrokerError> {
        match &self.wait {
            Some(Wait {
                durability, short, ..
            }) if let Some(why) = short.get() => Err(BrokerError::NotDurable {
                durability: *durability,
                why: why.clone(),
                accepted,
            }),
            _ => Ok(accepted),
        }
    }

    /// Checks that the server has the command and that the user may run it. Redis would otherwise refuse it only after
    /// the script before it has run.
    async fn require(&self, durability: Durability) -> Result<(), BrokerError> {
        if durability == Durability::Aof && !self.knows_waitaof().await? {
            return Err(BrokerError::Unsupported {
                durability,
                needs: "the command WAITAOF (Redis 7.2 or newer, or Valkey)",
            });
        }
        let Some(Permission { command, args }) = permissions::of_durability(durability) else {
            return Ok(());
        };
        let Some(Value::BulkString(user)) = self.asked(cmd("ACL").arg("WHOAMI")).await? else {
            return Ok(());
        };
        let mut dry = cmd("ACL");
        dry.arg("DRYRUN").arg(user).arg(&command).arg(args);
        match self.asked(&dry).await? {
            Some(Value::BulkString(refusal)) => {
                let refusal = String::from_utf8_lossy(&refusal);
                let error = ConnectionError::local(ConnectionErrorKind::Denied, command, refusal);
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    async fn knows_waitaof(&self) -> Result<bool, BrokerError> {
        let known = self
            .asked(cmd("COMMAND").arg("INFO").arg("WAITAOF"))
            .await?;
        Ok(match known {
            Some(Value::Array(known)) => matches!(known.first(), Some(Value::Array(_))),
            Some(_) => false,
            None => true,
        })
    }

    /// Sends a command to any server. Returns `None` if the user may not run it; the actual call then reports any problem.
    async fn asked(&self, ask: &Cmd) -> Result<Option<Value>, BrokerError> {
        match self
            .inner
            .connection
            .any()
            .call(ask, self.inner.call_timeout)
            .await
        {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.kind == ConnectionErrorKind::Denied => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::ConnectionSettings;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn only_what_was_reached_is_called_durable() {
        let settings = ConnectionSettings::new("redis://127.0.0.1:1".parse().unwrap());
        let connection = Connection::new(settings, &CancellationToken::new()).unwrap();
        let check = |durability, reply: Value| {
            let limit = Duration::from_millis(50);
            let wait = Wait {
                connection: connection.clone(),
                durability,
                limit,
                short: Arc::default(),
            };
            wait.note(&reply);
            assert_eq!(wait.is_over(), wait.check(&reply).is_err());
            wait.check(&reply)
        };
        let array = |local| Value::Array(vec![Value::Int(local), Value::Int(0)]);
        assert_eq!(check(Durability::Replicas(2), Value::Int(2)), Ok(()));
        assert_eq!(check(Durability::Aof, array(1)), Ok(()));
        let short = check(Durability::Replicas(2), Value::Int(1)).unwrap_err();
        assert!(
            short.contains("1 of 2 replicas confirmed it within 50ms"),
            "{short}"
        );
        assert!(
            check(Durability::Aof, array(0))
                .unwrap_err()
                .contains("not on disk")
        );
        assert!(check(Durability::Aof, Value::Okay).is_err());
        assert!(check(Durability::Replicas(1), Value::Nil).is_err());
    }
}
