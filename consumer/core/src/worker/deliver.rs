//! Handles one delivery: runs the handler with a timeout, sends the callback, and converts the outcome into a verdict.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use lisa_core::broker::{AUDIT_WITHIN, AuditEntry, Settlement, TopicHandle, Verdict};
use lisa_core::message::{MessageId, Record};
use lisa_core::retry::RetryPolicy;
use lisa_core::state::Attempt;
use lisa_core::time::{UnixMs, When, format_duration, millis};
use lisa_core::topic::{Group, Topic, TopicSettings};
use lisa_service::panics::panic_text;
use lisa_service::spans::{Span, within};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Instrument;

use crate::delivery::{Context, Delivery};
use crate::outcome::Outcome;
use crate::target::{self, Target};
use crate::worker::callback::Callback;
use crate::worker::failures;
use crate::worker::later::{self, NoKey};
use crate::worker::lease::{End, Lease};
use crate::worker::payloads::Unfetched;
use crate::worker::spans;
use crate::worker::state::{SettleQueue, ShardWorker};

/// The longest error text that is stored for an attempt, in bytes.
const MAX_ERROR: usize = 1024;

/// The time after which a message that paused its group is due again. It then waits for a resume, unless the pause failed.
const PAUSED: Duration = Duration::from_secs(1);

/// The time after which a message whose callback could not be sent is delivered again.
const CALLBACK_AGAIN: Duration = Duration::from_secs(10);

/// A delivery whose record was fetched.
pub(crate) struct Job {
    pub(crate) id: MessageId,
    pub(crate) attempt: Attempt,
    /// `None` if the message has no record.
    pub(crate) record: Option<Bytes>,
    pub(crate) lease: Lease,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Runs a delivery to its end. Releases the permit once the outcome is queued, so that a permit is not idle while Redis
/// settles. When Redis is slow, the full queue holds permits back.
///
/// Futures that few deliveries need are boxed, because each delivery that waits has a task with this future.
pub(crate) async fn run(queue: &SettleQueue, topic: &TopicHandle, job: Job) {
    let worker = &*queue.worker;
    let Job {
        id,
        attempt,
        record,
        lease,
        permit,
    } = job;
    let mut record = match decode(record) {
        Ok(record) => record,
        Err(verdict) => return Box::pin(refuse(queue, id, lease, verdict)).await,
    };
    let target = worker.subscription.handler().target();
    // An expired message gets no answer from the target, so it cannot serve as a probe.
    let is_over = || is_over(&attempt, || worker.now(topic));
    let target = target.filter(|_| !is_over());
    let _admission = match target.map(Target::admit) {
        None => None,
        Some(Some(admission)) => Some(admission),
        Some(None) => {
            let again = target::AGAIN.min(topic.settings().max_delay);
            return queue.put_off(id, lease, When::After(again)).await;
        }
    };
    let mut process = None;
    let end = match lease.ensure(worker, Instant::now()).await {
        End::Stopped => End::Stopped,
        End::LeaseLost => End::LeaseLost,
        End::Well(()) if is_over() => End::Well(Settlement {
            entry: attempt.entry,
            id: id.clone(),
            caller_id: record.caller_id,
            max_attempts: u32::MAX,
            verdict: Verdict::Expired,
        }),
        End::Well(()) => {
            let settings = topic.settings();
            let group = worker.subscription.group();
            let max_later = worker.subscription.handler().max_later();
            let token = match max_later {
                None => None,
                Some(_) => {
                    match Box::pin(later::token(worker, topic, (&id, &attempt), &record)).await {
                        Ok(token) => token,
                        Err(NoKey) => {
                            return queue.put_off(id, lease, When::After(later::AGAIN)).await;
                        }
                    }
                }
            };
            let delivery = delivery(topic, group, &id, &attempt, &mut record, worker.now(topic));
            let max_attempts = delivery.max_attempts;
            let callbacks = worker.subscription.callbacks();
            let success_topic = callbacks.success.as_ref();
            let callback = success_topic.map(|to| (to, Callback::success(delivery.clone())));
            let span = spans::process(worker, &delivery);
            let mut end = handle(worker, topic, delivery, &lease, token, span.as_ref()).await;
            if let (End::Well(Outcome::Ack), Some((to, callback))) = (&end, callback) {
                end = Box::pin(succeed(worker, topic, to, &callback, &lease)).await;
            }
            match end {
                End::Well(Outcome::Later { within }) if let Some(most) = max_later => {
                    return Box::pin(later::run(worker, topic, lease, within, most)).await;
                }
                End::Well(outcome) => {
                    if let Outcome::Pause { error } = &outcome {
                        Box::pin(pause_group(worker, topic, error)).await;
                    }
                    process = span;
                    End::Well(Settlement {
                        entry: attempt.entry,
                        id: id.clone(),
                        caller_id: record.caller_id,
                        max_attempts,
                        verdict: verdict(
                            outcome,
                            settings,
                            record.retry_policy(&settings.retry),
                            attempt.number,
                            || worker.now(topic),
                        ),
                    })
                }
                End::Stopped => End::Stopped,
                End::LeaseLost => End::LeaseLost,
            }
        }
    };
    match end {
        End::Well(settlement) => {
            failures::log(worker, &settlement, attempt.number);
            let span = spans::settle(worker, &settlement, process.as_ref());
            queue.settle(settlement, lease, span).await;
        }
        End::Stopped => queue.hand_back(id, lease).await,
        End::LeaseLost => worker.count_stale(),
    }
    drop(permit);
}

/// Creates the delivery of a message at `now`. Takes the headers and the payload out of its record.
pub fn delivery(
    topic: &TopicHandle,
    group: &Group,
    id: &MessageId,
    attempt: &Attempt,
    record: &mut Record,
    now: UnixMs,
) -> Delivery {
    let settings = topic.settings();
    // This clock is an estimate, but no message is delivered before it is due.
    let delivered_at = now.max(attempt.due).max(UnixMs::new(attempt.entry.ms()));
    Delivery {
        topic: topic.name().clone(),
        group: group.clone(),
        id: id.clone(),
        entry: attempt.entry,
        attempt: attempt.number,
        max_attempts: record.max_attempts.unwrap_or(settings.max_attempts),
        due_at: attempt.due,
        delivered_at,
        late: is_late(delivered_at.since(attempt.due), settings.max_lateness),
        last_error: None,
        headers: std::mem::take(&mut record.headers).into(),
        payload: std::mem::take(&mut record.payload),
    }
}

/// Sends the callback of a delivery whose handler has succeeded, and returns the outcome: an ack, or a defer if the
/// callback cannot be sent.
async fn succeed(
    worker: &ShardWorker,
    topic: &TopicHandle,
    to: &Topic,
    callback: &Callback,
    lease: &Lease,
) -> End<Outcome> {
    let limit = worker.subscription.timeout(topic);
    tokio::select! {
        biased;
        () = lease.lost().cancelled() => End::LeaseLost,
        () = worker.stop.cancelled() => End::Stopped,
        sent = callback.send(worker, to, limit) => End::Well(match sent {
            Ok(()) => Outcome::Ack,
            Err(_) if worker.draining().is_cancelled() => Outcome::defer(Duration::ZERO),
            Err(_) => Outcome::defer(CALLBACK_AGAIN),
        }),
    }
}

/// Pauses the group at the request of its handler. If that fails, the message is delivered again and the handler can repeat
/// the request.
async fn pause_group(worker: &ShardWorker, topic: &TopicHandle, error: &str) {
    let (group, broker) = (worker.subscription.group(), &worker.process.broker);
    match broker.pause_group(topic, group, true).await {
        // Only the first of several deliveries changes anything, so this is logged once.
        Ok(true) => {
            tracing::error!(topic = %topic.name(), %group, error, "group paused by its handler; `lisa-manager resume TOPIC --group GROUP` resumes it");
            let entry = AuditEntry {
                via: "handler".to_owned(),
                action: "pause".to_owned(),
                topic: topic.name().to_string(),
                group: group.to_string(),
                details: error.to_owned(),
                outcome: "done".to_owned(),
                ..AuditEntry::default()
            };
            if !matches!(
                timeout(AUDIT_WITHIN, broker.audit(&entry)).await,
                Ok(Ok(()))
            ) {
                tracing::warn!(?entry, "action is not in the audit log");
            }
        }
        Ok(false) => {}
        Err(failed) => {
            tracing::warn!(topic = %topic.name(), %group, error, %failed, "cannot pause the group; retrying");
        }
    }
}

/// Makes the span of a delivery in the log, at a level: `info_span` or `error_span`.
macro_rules! deliver_span {
    ($at:ident, $context:ident) => {
        tracing::$at!(
            "deliver",
            topic = %$context.topic(),
            group = %$context.group(),
            id = %$context.id(),
            attempt = $context.attempt(),
        )
    };
}

/// Runs the handler until it ends, reaches its deadline, or is stopped at the end of the grace period.
async fn handle(
    worker: &ShardWorker,
    topic: &TopicHandle,
    delivery: Delivery,
    lease: &Lease,
    token: Option<String>,
    process: Option<&Span>,
) -> End<Outcome> {
    let started = Instant::now();
    let deadline = started + worker.subscription.timeout(topic);
    let context = Context::starting(
        &delivery,
        started,
        deadline,
        worker.draining.clone(),
        lease.held().clone(),
        token,
        process.and_then(Span::trace),
    );
    let lateness = delivery.lateness();
    let span = deliver_span!(info_span, context);
    // The block owns the handler's future, so that a panic while the future is dropped is caught, too.
    let run = async {
        let handler = worker.subscription.handler();
        tokio::select! {
            biased;
            outcome = handler.handle(delivery, context.clone()) => (End::Well(outcome), None),
            deadline = overrun(&context) => {
                worker.process.counters.timed_out();
                if let Some(target) = handler.target() {
                    target.timed_out();
                }
                let limit = whole_ms(deadline - started);
                let outcome = Outcome::retry(format_args!("timed out after {}", format_duration(limit)));
                (End::Well(outcome), Some("timeout"))
            }
            () = worker.stop.cancelled() => (End::Stopped, None),
        }
    };
    let end = AssertUnwindSafe(within(process, run.instrument(span.clone())))
        .catch_unwind()
        .await;
    worker.lateness.observe(lateness);
    if let Some(metrics) = &worker.metrics {
        metrics.lateness(lateness);
        metrics.handled(started.elapsed());
    }
    let (end, error) = match end {
        Ok(_) if lease.lost().is_cancelled() => (End::LeaseLost, None),
        Ok(end) => end,
        Err(panic) => {
            worker.process.counters.panicked();
            let text = panic_text(&*panic);
            // A log of warnings only has no span of level info, but must name the message, too.
            let span = match span.is_disabled() {
                true => deliver_span!(error_span, context),
                false => span,
            };
            span.in_scope(|| tracing::error!(panic = text, "handler panicked"));
            (End::Well(Outcome::retry(text)), Some("panic"))
        }
    };
    if let Some(process) = process {
        if let Some(error) = error.or_else(|| spans::error(&end)) {
            process.failed(error);
        }
        process.end();
    }
    end
}

/// Waits for the deadline of a handler, which may move while the handler runs. Returns the final deadline.
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

/// Returns true if a message has expired.
pub fn is_over(attempt: &Attempt, now: impl FnOnce() -> UnixMs) -> bool {
    attempt.expires.is_some_and(|expires| now() >= expires)
}

/// Returns whether a delivery is later than its topic allows.
fn is_late(lateness: Duration, max_lateness: Option<Duration>) -> bool {
    max_lateness.is_some_and(|most| lateness > most)
}

/// Converts the outcome of a handler into a verdict. Delays are bounded by the topic's `max_delay`.
pub fn verdict(
    outcome: Outcome,
    settings: &TopicSettings,
    policy: &RetryPolicy,
    attempt: u32,
    now: impl FnOnce() -> UnixMs,
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
                When::At(at) => When::At(at.min(now().plus(settings.max_delay))),
            },
        },
        Outcome::Pause { .. } => Verdict::HandBack {
            when: When::After(PAUSED),
        },
        // The handler has no `max_later`.
        Outcome::Later { .. } => Verdict::Retry {
            when: When::After(policy.next_delay(attempt).min(settings.max_delay)),
            error: "cannot be completed later: the handler has no max_later".to_owned(),
        },
        Outcome::Reject { error } => Verdict::Reject {
            error: clean(error),
        },
    }
}

/// Cuts an error text to at most 1 KiB, and replaces control characters with spaces.
fn clean(mut text: String) -> String {
    if text.len() > MAX_ERROR {
        text.truncate(text.floor_char_boundary(MAX_ERROR));
    }
    if text.chars().any(char::is_control) {
        text = text.replace(char::is_control, " ");
    }
    text
}

/// Hands back a delivery whose payload is too large for the network. No attempt is counted, because no handler ran and an
/// operator can fix the cause.
pub(crate) async fn put_off(
    queue: &SettleQueue,
    id: MessageId,
    lease: Lease,
    unfetched: Unfetched,
) {
    let worker = &queue.worker;
    let Unfetched { size, pause, tried } = unfetched;
    let pause = pause.min(worker.topic().settings().max_delay);
    if tried {
        let timeout = worker.process.broker.connection().response_timeout();
        tracing::error!(
            %id, subscription = %worker.subscription, size, ?timeout, retry_in = ?pause,
            "cannot fetch a payload within redis.response_timeout; deferring all payloads of this size or larger on this server"
        );
    } else {
        tracing::debug!(%id, subscription = %worker.subscription, size, retry_in = ?pause, "deferring a payload that is too large");
    }
    queue.put_off(id, lease, When::After(pause)).await;
}

/// Decodes what the hash of a message holds.
///
/// # Errors
/// The verdict on a message that is gone or cannot be decoded.
pub fn decode(record: Option<Bytes>) -> Result<Record, Verdict> {
    let bytes = record.ok_or(Verdict::Lost)?;
    Record::decode(bytes).map_err(|error| Verdict::Reject {
        error: format!("cannot decode the record: {error}"),
    })
}

/// Settles a delivery whose record is missing or cannot be decoded.
async fn refuse(queue: &SettleQueue, id: MessageId, lease: Lease, verdict: Verdict) {
    let worker = &queue.worker;
    let (entry, lost) = (lease.entry(), verdict == Verdict::Lost);
    tracing::warn!(%id, subscription = %worker.subscription, lost, "payload missing or unreadable; handler not run");
    let settlement = Settlement {
        entry,
        id,
        caller_id: false,
        max_attempts: u32::MAX,
        verdict,
    };
    queue.settle(settlement, lease, None).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_outcome_puts_a_message_further_off_than_the_topic_allows() {
        let settings = TopicSettings::default();
        let (now, far) = (UnixMs::new(1_000_000), settings.max_delay);
        let when = |outcome| match verdict(outcome, &settings, &settings.retry, 1, || now) {
            Verdict::Retry { when, .. } | Verdict::Defer { when } => when,
            other => panic!("{other:?}"),
        };
        let (latest, never) = (When::At(now.plus(far)), Duration::MAX);
        assert_eq!(when(Outcome::defer(UnixMs::new(u64::MAX))), latest);
        assert_eq!(when(Outcome::defer(now)), When::At(now));
        assert_eq!(when(Outcome::defer(never)), When::After(far));
        assert_eq!(when(Outcome::retry_after(never, "x")), When::After(far));
    }

    #[test]
    fn a_message_is_over_at_its_expiry_and_late_behind_the_limit() {
        let attempt = |expires: Option<u64>| Attempt {
            entry: lisa_core::message::EntryId::new(5, 0),
            number: 1,
            due: UnixMs::new(5),
            crashes: 0,
            expires: expires.map(UnixMs::new),
        };
        let over = |expires| is_over(&attempt(expires), || UnixMs::new(10));
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
