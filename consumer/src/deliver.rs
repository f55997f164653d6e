//! One delivery: runs the handler with a time-out, and turns what it says into a verdict.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use lisa_shared::broker::{Settlement, TopicHandle, Verdict};
use lisa_shared::message::{MessageId, Record};
use lisa_shared::retry::{RetryPolicy, policy};
use lisa_shared::state::{Attempt, Settled};
use lisa_shared::supervise::panic_text;
use lisa_shared::time::{UnixMs, When, format_duration, millis};
use lisa_shared::topic::TopicSettings;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};

use crate::feed::{Desk, Feed};
use crate::handler::{Context, Delivery, Outcome};
use crate::lease::Lease;

/// The longest error text that is kept of an attempt, bytes.
const MAX_ERROR: usize = 1024;

/// A delivery that was read.
pub(crate) struct Job {
    pub(crate) id: MessageId,
    pub(crate) attempt: Attempt,
    pub(crate) record: Record,
    pub(crate) lease: Lease,
    pub(crate) permit: OwnedSemaphorePermit,
    pub(crate) topic: Arc<TopicHandle>,
}

/// The end of a lease check, of the marking of a suspect, or of a handler run.
pub(crate) enum End<T> {
    Well(T),
    /// The process stops first.
    Stopped,
    /// The message moved on.
    LeaseLost,
}

/// Sees a delivery to its end. The permit is given back when the outcome is queued: what Redis makes of it is not worth
/// an idle handler, and the full queue holds permits back when Redis is slow.
pub(crate) async fn run(desk: Desk, job: Job) {
    let feed = &*desk.feed;
    let Job {
        id,
        attempt,
        mut record,
        lease,
        permit,
        topic,
    } = job;
    let end = match lease.ensure(feed).await {
        End::Stopped => End::Stopped,
        End::LeaseLost => End::LeaseLost,
        End::Well(()) if is_over(&attempt, feed.now(&topic)) => End::Well(Settlement {
            entry: attempt.entry,
            id: id.clone(),
            caller_id: record.caller_id,
            max_attempts: u32::MAX,
            verdict: Verdict::Expired,
        }),
        End::Well(()) => {
            let settings = topic.settings();
            let max_attempts = record.max_attempts.unwrap_or(settings.max_attempts);
            // The clock here is an estimate; but nothing is delivered before it is due.
            let delivered_at = feed
                .now(&topic)
                .max(attempt.due)
                .max(UnixMs::new(attempt.entry.ms()));
            let delivery = Delivery {
                topic: topic.name().clone(),
                group: feed.subscription.group().clone(),
                id: id.clone(),
                entry: attempt.entry,
                attempt: attempt.number,
                max_attempts,
                due_at: attempt.due,
                delivered_at,
                late: is_late(delivered_at.since(attempt.due), settings.max_lateness),
                last_error: None,
                headers: std::mem::take(&mut record.headers),
                payload: std::mem::take(&mut record.payload),
            };
            match handle(feed, &topic, delivery, &lease).await {
                End::Well(outcome) => End::Well(Settlement {
                    entry: attempt.entry,
                    id: id.clone(),
                    caller_id: record.caller_id,
                    max_attempts,
                    verdict: verdict(
                        outcome,
                        settings,
                        policy(&record, settings),
                        attempt.number,
                        feed.now(&topic),
                    ),
                }),
                End::Stopped => End::Stopped,
                End::LeaseLost => End::LeaseLost,
            }
        }
    };
    match end {
        End::Well(settlement) => desk.settle(settlement, lease).await,
        End::Stopped => desk.hand_back(id, lease).await,
        End::LeaseLost => count_stale(feed, &topic),
    }
    drop(permit);
}

/// Counts a delivery whose message moved on.
pub(crate) fn count_stale(feed: &Feed, topic: &TopicHandle) {
    feed.process.tally.settled(Settled::Stale);
    if let Some(metrics) = &feed.process.metrics {
        metrics.delivered(
            topic.name().as_str(),
            feed.subscription.group().as_str(),
            Settled::Stale.as_str(),
        );
    }
}

/// Runs the handler.
async fn handle(
    feed: &Feed,
    topic: &TopicHandle,
    delivery: Delivery,
    lease: &Lease,
) -> End<Outcome> {
    let started = Instant::now();
    let deadline = started + feed.subscription.timeout(topic);
    let context = Context::new(
        delivery.attempt,
        deadline,
        feed.draining().clone(),
        lease.lost().clone(),
    );
    let lateness = delivery.lateness();
    // The future lives in here, so that a panic while it is dropped is caught, too.
    let run = async {
        let handler = feed.subscription.handler();
        tokio::select! {
            biased;
            outcome = handler.handle(delivery, context.clone()) => End::Well(outcome),
            deadline = overrun(&context) => {
                feed.process.tally.timed_out();
                let limit = whole_ms(deadline - started);
                End::Well(Outcome::retry(format_args!("timed out after {}", format_duration(limit))))
            }
            () = feed.stop.cancelled() => End::Stopped,
        }
    };
    let end = AssertUnwindSafe(run).catch_unwind().await;
    if let Some(metrics) = &feed.process.metrics {
        let (topic, group) = (topic.name().as_str(), feed.subscription.group().as_str());
        metrics.lateness(topic, group, lateness);
        metrics.handled(topic, group, started.elapsed());
    }
    match end {
        Ok(_) if lease.lost().is_cancelled() => End::LeaseLost,
        Ok(end) => end,
        Err(panic) => {
            feed.process.tally.panicked();
            let text = panic_text(&*panic);
            tracing::error!(subscription = %feed.subscription, panic = text, "a handler panicked");
            End::Well(Outcome::retry(text))
        }
    }
}

/// Waits for the deadline of a handler, which may move while it runs; gives where it stood in the end.
async fn overrun(context: &Context) -> Instant {
    loop {
        let deadline = context.deadline();
        sleep_until(deadline).await;
        if context.deadline() == deadline {
            return deadline;
        }
    }
}

fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(millis(time))
}

/// Says whether a message is too old to be handled.
fn is_over(attempt: &Attempt, now: UnixMs) -> bool {
    attempt.expires.is_some_and(|expires| now >= expires)
}

/// Says whether a delivery is later than its topic allows.
fn is_late(lateness: Duration, max_lateness: Option<Duration>) -> bool {
    max_lateness.is_some_and(|most| lateness > most)
}

/// Turns what a handler says into what Redis is told. Times are bounded by the topic's `max_delay`.
fn verdict(
    outcome: Outcome,
    settings: &TopicSettings,
    policy: &RetryPolicy,
    attempt: u32,
    now: UnixMs,
) -> Verdict {
    match outcome {
        Outcome::Ack => Verdict::Ack,
        Outcome::Retry { after, error } => {
            let after = after.unwrap_or_else(|| policy.next_delay(attempt));
            Verdict::Retry {
                when: When::After(after.min(settings.max_delay)),
                error: clean(error),
            }
        }
        Outcome::Defer { until } => Verdict::Defer {
            when: match until {
                When::After(delay) => When::After(delay.min(settings.max_delay)),
                When::At(at) => When::At(at.min(now.plus(settings.max_delay))),
            },
        },
        Outcome::Reject { error } => Verdict::Reject {
            error: clean(error),
        },
    }
}

/// Makes an error text fit to be kept: up to 1 KiB, without control characters.
fn clean(mut text: String) -> String {
    if text.len() > MAX_ERROR {
        text.truncate(text.floor_char_boundary(MAX_ERROR));
    }
    if text.chars().any(char::is_control) {
        text = text.replace(char::is_control, " ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_outcome_puts_a_message_further_off_than_the_topic_allows() {
        let settings = TopicSettings::default();
        let (now, far) = (UnixMs::new(1_000_000), settings.max_delay);
        let told = |outcome| match verdict(outcome, &settings, &settings.retry, 1, now) {
            Verdict::Retry { when, .. } | Verdict::Defer { when } => when,
            other => panic!("{other:?}"),
        };
        let (latest, never) = (When::At(now.plus(far)), Duration::MAX);
        assert_eq!(told(Outcome::defer(UnixMs::new(u64::MAX))), latest);
        assert_eq!(told(Outcome::defer(now)), When::At(now));
        assert_eq!(told(Outcome::defer(never)), When::After(far));
        assert_eq!(told(Outcome::retry_after(never, "x")), When::After(far));
    }

    #[test]
    fn a_message_is_over_at_its_expiry_and_late_behind_the_limit() {
        let attempt = |expires: Option<u64>| Attempt {
            entry: lisa_shared::message::EntryId::new(5, 0),
            number: 1,
            due: UnixMs::new(5),
            crashes: 0,
            expires: expires.map(UnixMs::new),
        };
        let over = |expires| is_over(&attempt(expires), UnixMs::new(10));
        assert_eq!([None, Some(11), Some(10)].map(over), [false, false, true]);
        let ms = Duration::from_millis;
        assert!(!is_late(ms(10), None));
        assert!(!is_late(ms(10), Some(ms(10))));
        assert!(is_late(ms(11), Some(ms(10))));
    }

    #[test]
    fn an_error_text_is_cut_at_a_character_and_has_no_control_characters() {
        assert_eq!(clean("a\nb\u{1b}[1m".to_owned()), "a b [1m");
        let long = clean("ä".repeat(MAX_ERROR));
        assert_eq!(long.len(), MAX_ERROR);
        assert!(clean("aä".repeat(MAX_ERROR)).len() <= MAX_ERROR);
    }
}
