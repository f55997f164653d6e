//! Sends for the times of a schedule in a period of the past.

use std::fmt::{self, Display};
use std::iter::successors;

use futures_util::future::join_all;
use lisa_core::time::UnixMs;
use lisa_core::topic::ScheduleName;
use lisa_producer::SendError;
use lisa_producer::http::problem;
use lisa_service::http::Problem;

use super::{Backfilled, Schedules, invalid, is_new};
use crate::operations::audit::Action;
use crate::operations::counted;
use crate::recurring::{SENDS_AT_A_TIME, Sender};

/// The most times of one call.
const AT_MOST: usize = 1000;

/// The words between the number of messages that were sent and the time to continue from.
const CONTINUE: &str = " sent; continue from ";

/// The period of a backfill: from `from` on and before `to`, by default now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    pub(crate) from: UnixMs,
    pub(crate) to: Option<UnixMs>,
}

/// The number of messages that were sent, and of those that already existed.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    duplicates: u64,
}

/// The failure of a send after some messages.
#[derive(Debug)]
struct Failed {
    sent: u64,
    /// The first time that was not sent for.
    next: UnixMs,
    error: SendError,
}

impl Schedules<'_> {
    /// Sends messages, due now, for the first 1,000 times of a schedule in a period. Their ids are those that the schedule would have
    /// used, so none is sent twice within the dedup window of the topic. With `dry_run`, only counts the times.
    ///
    /// # Errors
    /// There is no such schedule; the period is not in the past; the topic refuses a message, and the problem says how many were sent;
    /// Redis.
    pub(crate) async fn backfill(
        self,
        sender: &Sender,
        name: &ScheduleName,
        Period { from, to }: Period,
        dry_run: bool,
        action: Action,
    ) -> Result<Backfilled, Problem> {
        let (_, schedule, _) = self.find(name).await?;
        let now = self.broker.now();
        let to = to.unwrap_or(now);
        if to > now {
            return Err(invalid("to", &"must not be in the future"));
        }
        if from >= to {
            return Err(invalid("from", &"must be before to"));
        }
        let next = |after: &UnixMs| schedule.cron.next(&schedule.time_zone, *after);
        let before = UnixMs::new(from.get().saturating_sub(1));
        let mut times = successors(next(&before), next).take_while(|at| *at < to);
        let chosen: Vec<UnixMs> = times.by_ref().take(AT_MOST).collect();
        let left = times.next();
        let mut counts = Counts::default();
        if !dry_run {
            let action = action.topic(&schedule.topic);
            let action = action.details(format!("{name}, {from} to {to}"));
            let send = |at: UnixMs| sender.send(name, &schedule, at);
            let done = async {
                let mut counts = Counts::default();
                for times in chosen.chunks(SENDS_AT_A_TIME) {
                    let mut failed = None;
                    // All to their end, so that the numbers are those of what is stored.
                    let results = join_all(times.iter().map(|at| send(*at))).await;
                    for (next, result) in times.iter().zip(results) {
                        match result {
                            Ok(receipt) if is_new(&receipt) => counts.sent += 1,
                            Ok(_) => counts.duplicates += 1,
                            Err(error) => failed = failed.or(Some((*next, error))),
                        }
                    }
                    if let Some((next, error)) = failed {
                        let sent = counts.sent;
                        return Err(Failed { sent, next, error });
                    }
                }
                Ok(counts)
            };
            let outcome = |counts: &Counts| format!("{} of {}", counts.sent, chosen.len());
            let done = action.run(done, outcome).await;
            counts = done.map_err(Failed::problem)?;
        }
        Ok(Backfilled {
            schedule: name.clone(),
            times: chosen.len() as u64,
            sent: counts.sent,
            duplicates: counts.duplicates,
            next: left.map(|at| at.to_string()),
            topic: schedule.topic,
        })
    }
}

impl Failed {
    fn problem(self) -> Problem {
        let (sent, next) = (self.sent, self.next);
        let problem = problem(self.error);
        Problem::new(problem.code(), text(sent, next, problem.detail()))
    }
}

impl Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self.sent, self.next, &self.error.to_string()))
    }
}

/// Returns the number of messages that were sent, the time to continue from, and the reason. The reason is that of a single send, so
/// this function drops the remark that nothing was stored.
fn text(sent: u64, next: UnixMs, reason: &str) -> String {
    let ends = ["; nothing was stored", ": nothing was done"];
    let short = ends.iter().find_map(|end| reason.strip_suffix(end));
    let (sent, reason) = (counted(sent, "message"), short.unwrap_or(reason));
    format!("{sent}{CONTINUE}{next}: {reason}")
}

/// Adds the messages that earlier calls have sent to the text of a failure; `None` for the text of another problem.
pub(crate) fn add_earlier(text: &str, earlier: u64) -> Option<String> {
    let (sent, rest) = text.split_once(CONTINUE)?;
    let sent: u64 = sent.split_once(' ')?.0.parse().ok()?;
    Some(format!(
        "{}{CONTINUE}{rest}",
        counted(earlier + sent, "message")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_failure_counts_earlier_calls() {
        let text = text(1, UnixMs::new(0), &SendError::Full.to_string());
        let rest = "sent; continue from 1970-01-01T00:00:00.000Z: the topic has reached its max_messages or max_bytes";
        assert_eq!(text, format!("1 message {rest}"));
        let all = add_earlier(&text, 2000);
        assert_eq!(all, Some(format!("2001 messages {rest}")));
        assert_eq!(
            add_earlier("Redis unavailable: nothing was done", 2000),
            None
        );
    }
}
