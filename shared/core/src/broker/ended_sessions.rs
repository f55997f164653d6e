//! The sessions of dashboards that were ended by a logout. The signature alone makes a cookie valid, so each manager asks which
//! sessions have ended.

use std::collections::HashMap;
use std::time::Duration;

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError};
use crate::time::UnixMs;

/// The number of ended sessions that are kept. Only the holder of a token can end one.
const ENDED_SESSIONS_KEPT: usize = 10_000;

impl Broker {
    /// Records that a session ended at `now`, and forgets those that ended more than `longest` before: no session lasts longer
    /// than that. Costs three commands.
    ///
    /// # Errors
    /// [`BrokerError`]. The call can be repeated.
    pub async fn end_session(
        &self,
        session: &str,
        now: UnixMs,
        longest: Duration,
    ) -> Result<(), BrokerError> {
        let key = &self.inner.registry.ended_sessions;
        let oldest = now.get().saturating_sub(longest.as_millis() as u64);
        let add = command("ZADD", key).arg(now.get()).arg(session);
        let _: u64 = self.ask(add).await?;
        let drop_old = command("ZREMRANGEBYSCORE", key).arg("-inf").arg(oldest);
        let _: u64 = self.ask(drop_old).await?;
        let surplus = -(ENDED_SESSIONS_KEPT as i64) - 1;
        let drop_surplus = command("ZREMRANGEBYRANK", key).arg(0).arg(surplus);
        let _: u64 = self.ask(drop_surplus).await?;
        Ok(())
    }

    /// Returns the sessions that were ended, each with its time: up to 10,000. Costs one command.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn ended_sessions(&self) -> Result<HashMap<String, UnixMs>, BrokerError> {
        let read = command("ZRANGE", &self.inner.registry.ended_sessions);
        let ended: Vec<(String, f64)> = self.ask(read.arg(&["0", "-1", "WITHSCORES"])).await?;
        let at = |(session, ms): (String, f64)| (session, UnixMs::new(ms as u64));
        Ok(ended.into_iter().map(at).collect())
    }
}
