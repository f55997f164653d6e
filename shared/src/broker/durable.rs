//! Sends that wait until what they stored is safe: `WAIT` and `WAITAOF` behind the script, on one connection.
//!
//! Both commands speak of what their own connection wrote before. The connection answers nothing else meanwhile, so each
//! kind of durability has a link of its own, made with its first send.

use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::{Broker, BrokerError};
use crate::durability::Durability;
use crate::link::checks::Permission;
use crate::link::{Link, LinkError, LinkErrorKind};
use crate::permissions;
use crate::state::Accepted;
use crate::time::{format_duration, millis};

/// What a call waits for after its script.
#[derive(Clone)]
pub(super) struct Wait {
    pub(super) link: Link,
    durability: Durability,
    pub(super) limit: Duration,
    /// Why what the call has stored so far is not as safe as it was to be, if so. Of one call, however many scripts it
    /// takes.
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

    /// Says whether waiting any more has no use: something fell short already.
    pub(super) fn is_over(&self) -> bool {
        self.short.get().is_some()
    }

    /// Takes in the reply, behind a script that has done its work.
    pub(super) fn note(&self, reply: &Value) {
        if let Err(why) = self.check(reply) {
            // The first reason will do.
            let _ = self.short.set(why);
        }
    }

    /// Judges the reply; else why what was stored is not safe.
    fn check(&self, reply: &Value) -> Result<(), String> {
        let within = || format_duration(self.limit);
        let why = match (self.durability, reply) {
            (Durability::Replicas(wanted), Value::Int(has)) if *has >= i64::from(wanted) => {
                return Ok(());
            }
            (Durability::Replicas(wanted), Value::Int(has)) => {
                format!("{has} of {wanted} replicas had it within {}", within())
            }
            (_, Value::Array(numbers)) => match numbers.first() {
                Some(Value::Int(local)) if *local >= 1 => return Ok(()),
                _ => format!("it was not on disk within {}", within()),
            },
            (_, Value::ServerError(error)) => {
                format!(
                    "redis says {} {}",
                    error.code(),
                    error.details().unwrap_or_default()
                )
            }
            (_, other) => format!("redis answered {other:?}"),
        };
        Err(why)
    }
}

impl Broker {
    /// Gives a broker whose calls wait for a durability, up to `limit`.
    ///
    /// # Errors
    /// [`BrokerError::Unsupported`] where the server lacks the command; [`BrokerError::Link`], also where the user may not
    /// run it.
    pub(super) async fn that_waits(
        &self,
        durability: Durability,
        limit: Duration,
    ) -> Result<Self, BrokerError> {
        if durability == Durability::Memory {
            return Ok(self.clone());
        }
        let known = self.waiting_links().get(&durability).cloned();
        let link = match known {
            Some(link) => link,
            None => {
                self.require(durability).await?;
                let link = self.inner.link.another()?;
                self.waiting_links()
                    .entry(durability)
                    .or_insert(link)
                    .clone()
            }
        };
        Ok(Self {
            inner: self.inner.clone(),
            wait: Some(Wait {
                link,
                durability,
                limit,
                short: Arc::default(),
            }),
        })
    }

    /// Hands on what a send was answered, if all of it is as safe as it was to be.
    ///
    /// # Errors
    /// [`BrokerError::NotDurable`], with what was answered.
    pub(super) fn told(&self, accepted: Vec<Accepted>) -> Result<Vec<Accepted>, BrokerError> {
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

    fn waiting_links(
        &self,
    ) -> std::sync::MutexGuard<'_, std::collections::BTreeMap<Durability, Link>> {
        self.inner
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Redis says that it lacks a command, or that the user lacks the right to it, only after the script before it has run.
    async fn require(&self, durability: Durability) -> Result<(), BrokerError> {
        if durability == Durability::Aof && !self.knows_waitaof().await? {
            return Err(BrokerError::Unsupported {
                durability,
                needs: "the command WAITAOF, of Redis 7.2 or newer and Valkey",
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
                let error = LinkError::local(LinkErrorKind::Denied, command, refusal);
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

    /// Asks any server; nothing where the user may not ask, who finds out by trying.
    async fn asked(&self, ask: &Cmd) -> Result<Option<Value>, BrokerError> {
        match self.inner.link.any().call(ask, self.inner.patience).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.kind == LinkErrorKind::Denied => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkSettings;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn only_what_was_reached_is_called_durable() {
        let settings = LinkSettings::new("redis://127.0.0.1:1".parse().unwrap());
        let link = Link::new(settings, &CancellationToken::new()).unwrap();
        let check = |durability, reply: Value| {
            let limit = Duration::from_millis(50);
            let wait = Wait {
                link: link.clone(),
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
            short.contains("1 of 2 replicas had it within 50ms"),
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
