//! The last failed attempts of a message, which follow its last error.

use lisa_core::broker::{FailedAttempt, FailedOutcome, Found, Settlement, Verdict};
use lisa_core::state::Settled;
use lisa_core::time::UnixMs;
use lisa_tests::relay::{self, Relay, START, WORKER, id, ms};

async fn attempts(relay: &Relay, name: &str) -> Vec<FailedAttempt> {
    let found = relay.broker().lookup(relay.topic(), &id(name), None).await;
    let Ok(Found::Stored { mut details, .. }) = found else {
        panic!("{found:?}");
    };
    details.copies.remove(0).attempts
}

fn attempt(at: u64, outcome: FailedOutcome, error: &str) -> FailedAttempt {
    FailedAttempt {
        at: UnixMs::new(START + at),
        outcome,
        consumer: Some(WORKER.to_owned()),
        error: error.to_owned(),
    }
}

fn fail(error: &str) -> Verdict {
    Verdict::Retry {
        when: ms(0).into(),
        error: error.to_owned(),
    }
}

#[tokio::test]
async fn the_last_five_failed_attempts_are_kept_into_garbage() {
    let relay = Relay::start("attempts").await;
    let mut read = relay.hold("a").await;
    for n in 1..=6 {
        let settlement = Settlement {
            max_attempts: 10,
            ..relay::settlement(&read, fail(&format!("error {n}")))
        };
        relay.settle_all(&[settlement]).await;
        relay.step(1);
        relay.move_due(200).await;
        read = relay.read_one().await;
    }
    let failed = |n: u64| attempt(n - 1, FailedOutcome::Failed, &format!("error {n}"));
    assert_eq!(attempts(&relay, "a").await, [6, 5, 4, 3, 2].map(failed));
    let error = "no\0good\tat all".to_owned();
    let rejected = relay.settle(&read, Verdict::Reject { error }).await;
    assert_eq!(rejected, Settled::Garbage);
    let rejected = attempt(6, FailedOutcome::Rejected, "no good at all");
    let kept = [6, 5, 4, 3].map(failed);
    assert_eq!(
        attempts(&relay, "a").await,
        [&[rejected][..], &kept].concat()
    );
    relay.assert_conserved().await;
}

#[tokio::test]
async fn what_is_not_a_failure_keeps_the_attempts_as_they_are() {
    let relay = Relay::start("attempts").await;
    let read = relay.hold("a").await;
    relay.settle(&read, fail("it failed")).await;
    let expected = [attempt(0, FailedOutcome::Failed, "it failed")];
    for verdict in [
        Verdict::Defer { when: ms(0).into() },
        Verdict::HandBack { when: ms(0).into() },
        Verdict::Expired,
        Verdict::Lost,
    ] {
        relay.step(1);
        relay.move_due(200).await;
        let read = relay.read_one().await;
        assert!(matches!(
            relay.settle(&read, verdict).await,
            Settled::Deferred { .. }
        ));
        assert_eq!(attempts(&relay, "a").await, expected);
    }
    relay.assert_conserved().await;
}

#[tokio::test]
async fn an_expired_lease_is_a_failed_attempt_and_a_stale_outcome_is_none() {
    let relay = Relay::start("attempts").await;
    let read = relay.hold("a").await;
    relay.age(read.attempt.entry, WORKER, ms(1000)).await;
    relay.reclaim().await;
    assert_eq!(relay.settle(&read, fail("too late")).await, Settled::Stale);
    let error = "the lease of worker ran out";
    let expected = attempt(0, FailedOutcome::LeaseExpired, error);
    assert_eq!(attempts(&relay, "a").await, [expected]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn the_attempts_of_a_message_take_a_bounded_size() {
    let relay = Relay::start("attempts").await;
    let mut read = relay.hold("a").await;
    // Three bytes each: 200 bytes end in the middle of the 67th.
    let long = "€".repeat(300);
    for _ in 0..2 {
        relay.settle(&read, fail(&long)).await;
        relay.step(1);
        relay.move_due(200).await;
        read = relay.read_one().await;
    }
    let cut = "€".repeat(66);
    let seen = attempts(&relay, "a").await;
    assert!(seen.iter().all(|attempt| attempt.error == cut), "{seen:?}");
    let snapshot = relay.snapshot().await;
    let value = &snapshot.hash(&relay.short_key(0, "attempts:default"))["a".as_bytes()];
    assert!(value.0.len() <= long.len() + 10 + 2 * 300, "{value}");
}

#[tokio::test]
async fn a_requeue_keeps_the_failed_attempts_and_counts_from_zero() {
    let relay = Relay::start("attempts").await;
    relay.put_in_garbage("a").await;
    let seen = [(id("a"), relay.now())];
    let requeued = relay
        .broker()
        .requeue(relay.topic(), relay.group(), &seen)
        .await;
    assert_eq!(requeued.unwrap(), 1);
    let rejected = attempt(0, FailedOutcome::Rejected, "no good");
    assert_eq!(attempts(&relay, "a").await, std::slice::from_ref(&rejected));

    // Also after a first attempt that ends without a failure.
    relay.move_due(200).await;
    let read = relay.read_one().await;
    assert_eq!(read.attempt.number, 1);
    let defer = Verdict::Defer { when: ms(1).into() };
    relay.settle(&read, defer).await;
    assert_eq!(attempts(&relay, "a").await, std::slice::from_ref(&rejected));
    relay.step(1);
    relay.move_due(200).await;
    let read = relay.read_one().await;
    relay.settle(&read, fail("again")).await;
    let failed = attempt(1, FailedOutcome::Failed, "again");
    assert_eq!(attempts(&relay, "a").await, [failed, rejected]);

    // Its end leaves nothing.
    relay.move_due(200).await;
    let read = relay.read_one().await;
    relay.settle(&read, Verdict::Ack).await;
    relay.assert_drained().await;
}
