//! The final retry: hooks of messages that were moved to garbage.

use super::*;
use lisa_consumer::{Handler, handler_fn};
use lisa_core::state::{GarbageReason, Settled};

type Told = (Delivery, GarbageReason);

/// A handler that rejects everything, with a hook that reports what it received and then does as `hook` says.
fn rejecting<R>(
    hook: impl Fn(Delivery) -> R + Send + Sync + 'static,
) -> (mpsc::UnboundedReceiver<Told>, impl Handler)
where
    R: Future<Output: lisa_consumer::IntoOutcome> + Send + 'static,
{
    let (tell, told) = mpsc::unbounded_channel();
    let handler = delivery_fn(|_, _| async { Outcome::reject("never") });
    let handler = handler.on_garbage(move |delivery: Delivery, reason| {
        tell.send((delivery.clone(), reason))
            .expect("a test that listens");
        hook(delivery)
    });
    (told, handler)
}

async fn next(told: &mut mpsc::UnboundedReceiver<Told>) -> Told {
    let next = tokio::time::timeout(SOON, told.recv());
    next.await.expect("a call in time").expect("a consumer")
}

fn start(relay: &Relay, handler: impl Handler) -> Running {
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    Running::start(consumer.build().unwrap())
}

/// Waits until garbage is noted for the hook.
async fn enabled(relay: &Relay) {
    let mark = async || match relay.hash("conf").await.get("garbage_hook:default") {
        Some(_) => Ok(()),
        None => Err("not marked"),
    };
    eventually(SOON, mark).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_once_for_what_its_handler_rejected() {
    let relay = Arc::new(relay("hook").await);
    let look = relay.clone();
    let (mut told, handler) = rejecting(move |delivery| {
        let look = look.clone();
        async move {
            let garbage = look.zset("garbage:default").await;
            assert!(garbage.contains_key(delivery.id.as_str()), "{garbage:?}");
        }
    });
    let running = start(&relay, handler);
    enabled(&relay).await;
    let mut sent = message("a", When::NOW);
    sent.record.max_attempts = Some(7);
    sent.record.headers.insert("trace", "x").unwrap();
    relay.send(&[sent]).await;
    let (delivery, reason) = next(&mut told).await;
    assert_eq!(
        (delivery.id.as_str(), reason),
        ("a", GarbageReason::Rejected)
    );
    assert_eq!((delivery.attempt, delivery.max_attempts), (1, 7));
    assert_eq!(delivery.last_error.as_deref(), Some("never"));
    assert_eq!(&*delivery.payload, b"payload of a");
    assert_eq!(delivery.headers.get("trace"), Some("x"));
    let in_garbage = relay.zset("garbage:default").await["a"];
    assert_eq!(delivery.due_at.get(), in_garbage);
    running.until(|report| report.garbage_hooks == 1).await;
    assert!(relay.zset("garbage_hook:default").await.is_empty());
    let report = running.stop().await;
    assert_eq!((report.garbage, report.garbage_hooks), (1, 1));
    assert!(told.try_recv().is_err(), "called once");
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_for_what_the_manager_moved_to_garbage() {
    let relay = relay("hook-reclaim").await;
    let mut sent = message("a", When::NOW);
    sent.record.max_attempts = Some(1);
    relay.send(&[sent]).await;
    let entry = relay.read_one().await.attempt.entry;
    let (broker, shard, entries) = (relay.broker(), Shard::new(0), [entry]);
    let started = broker.renew(relay.topic(), shard, relay.group(), relay::WORKER, &entries);
    assert_eq!(started.await.unwrap(), entries);
    let (mut told, handler) = rejecting(|_| async {});
    let running = start(&relay, handler);
    enabled(&relay).await;
    relay.age(entry, relay::WORKER, ms(2000)).await;
    assert_eq!(relay.reclaim().await.garbage, 1);
    let (delivery, reason) = next(&mut told).await;
    assert_eq!(
        (delivery.id.as_str(), reason),
        ("a", GarbageReason::Exhausted)
    );
    let error = delivery.last_error.unwrap();
    assert!(error.contains("the lease of worker ran out"), "{error}");
    running.until(|report| report.garbage_hooks == 1).await;
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_for_what_has_expired() {
    let relay = relay("hook-expired").await;
    let (mut told, handler) = rejecting(|_| async {});
    let running = start(&relay, handler);
    enabled(&relay).await;
    let mut sent = message("a", When::NOW);
    sent.options.expiry = Some(lisa_core::message::Expiry::After(ms(1)));
    relay.send(&[sent]).await;
    tokio::time::sleep(ms(10)).await;
    relay.move_due(100).await;
    let (delivery, reason) = next(&mut told).await;
    assert_eq!(
        (delivery.id.as_str(), reason, delivery.attempt),
        ("a", GarbageReason::Expired, 0)
    );
    assert_eq!(&*delivery.payload, b"payload of a");
    running.until(|report| report.garbage_hooks == 1).await;
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_fails_panics_or_takes_too_long_runs_again_after_the_lease() {
    let relay = relay("hook-fails").await;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let (mut told, handler) = rejecting(move |_| {
        let run = count.fetch_add(1, Ordering::SeqCst);
        async move {
            match run {
                0 => return Err("not now"),
                1 => panic!("boom"),
                2 => std::future::pending::<()>().await,
                _ => {}
            }
            Ok(())
        }
    });
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .handler_timeout(ms(100));
    let running = Running::start(consumer.build().unwrap());
    enabled(&relay).await;
    let begun = Instant::now();
    relay.send(&[message("a", When::NOW)]).await;
    for _ in 0..4 {
        next(&mut told).await;
    }
    // Three leases ended in between. The time is an estimate of Redis's clock, less exact on a busy machine.
    let took = begun.elapsed();
    assert!(took > settings().lease.mul_f64(2.5), "{took:?}");
    running.until(|report| report.garbage_hooks == 1).await;
    running.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 4);
    assert!(relay.zset("garbage_hook:default").await.is_empty());
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hook_of_a_consumer_that_died_is_run_by_another_one() {
    let relay = relay("hook-dies").await;
    let (mut told, handler) = rejecting(|_| std::future::pending::<()>());
    let doomed = start(&relay, handler);
    enabled(&relay).await;
    relay.send(&[message("a", When::NOW)]).await;
    next(&mut told).await;
    doomed.run.abort();
    let (mut told, handler) = rejecting(|_| async {});
    let running = start(&relay, handler);
    assert_eq!(next(&mut told).await.0.id.as_str(), "a");
    running.until(|report| report.garbage_hooks == 1).await;
    running.stop().await;
    assert!(relay.zset("garbage_hook:default").await.is_empty());
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_takes_longer_than_a_lease_keeps_it_and_is_awaited_at_the_end() {
    unless_held_up(settings().lease / 4, async || {
        let relay = relay("hook-slow").await;
        let go = Arc::new(Semaphore::new(0));
        let held = go.clone();
        let (mut told, handler) = rejecting(move |_| {
            let held = held.clone();
            async move { held.acquire().await.expect("never closed").forget() }
        });
        let handler = Arc::new(handler);
        let (one, other) = (start(&relay, handler.clone()), start(&relay, handler));
        enabled(&relay).await;
        relay.send(&[message("a", When::NOW)]).await;
        let (delivery, _) = next(&mut told).await;
        let later = delivery.delivered_at.plus(settings().lease.mul_f64(2.5));
        while relay.broker().now() < later {
            assert!(told.try_recv().is_err(), "one at a time");
            tokio::time::sleep(ms(20)).await;
        }
        one.stop.cancel();
        other.stop.cancel();
        let after = relay.broker().now().plus(ms(200));
        while relay.broker().now() < after {
            let both = one.run.is_finished() && other.run.is_finished();
            assert!(!both, "the hook is awaited");
            tokio::time::sleep(ms(20)).await;
        }
        go.add_permits(1);
        let reports = [one.stop().await, other.stop().await];
        assert_eq!(reports.iter().map(|r| r.garbage_hooks).sum::<u64>(), 1);
        assert!(relay.zset("garbage_hook:default").await.is_empty());
        relay.assert_conserved().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_hangs_is_dropped_at_the_end_of_the_grace_and_runs_again_later() {
    let relay = relay("hook-hangs").await;
    let (mut told, handler) = rejecting(|_| std::future::pending::<()>());
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .grace(ms(200));
    let running = Running::start(consumer.build().unwrap());
    enabled(&relay).await;
    relay.send(&[message("a", When::NOW)]).await;
    next(&mut told).await;
    let report = running.stop().await;
    assert_eq!((report.garbage, report.garbage_hooks), (1, 0));
    assert_eq!(relay.zset("garbage_hook:default").await.len(), 1);
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_hooks_run_at_once_than_handlers() {
    let relay = relay("hook-many").await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let go = Arc::new(Semaphore::new(0));
    let (top, held) = (most.clone(), go.clone());
    let (mut told, handler) = rejecting(move |_| {
        let (now, top, held) = (now.clone(), top.clone(), held.clone());
        async move {
            top.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            held.acquire().await.expect("never closed").forget();
            now.fetch_sub(1, Ordering::SeqCst);
        }
    });
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(3);
    let running = Running::start(consumer.build().unwrap());
    enabled(&relay).await;
    relay.send(&numbered(60)).await;
    running.until(|report| report.garbage == 60).await;
    // Three begin; each that ends makes room for one more.
    for _ in 0..3 {
        next(&mut told).await;
    }
    for _ in 3..60 {
        assert!(told.try_recv().is_err(), "no more than three");
        go.add_permits(1);
        next(&mut told).await;
    }
    go.add_permits(3);
    running.until(|report| report.garbage_hooks == 60).await;
    running.stop().await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_hook_nothing_is_noted_and_with_one_only_what_comes_after_it() {
    let relay = relay("hook-later").await;
    let handler = handler_fn(|_: u32, _: Context| async {});
    let running = start(&relay, handler);
    relay.send(&[message("early", When::NOW)]).await;
    running.until(|report| report.garbage == 1).await;
    running.stop().await;
    assert!(
        !relay
            .hash("conf")
            .await
            .contains_key("garbage_hook:default")
    );
    assert!(relay.zset("garbage_hook:default").await.is_empty());

    let (mut told, handler) = rejecting(|_| async {});
    let running = start(&relay, handler);
    enabled(&relay).await;
    running.stop().await;
    // No consumer runs for a while; messages that go to garbage meanwhile are not forgotten.
    let read = relay.hold("meanwhile").await;
    let error = "by hand".to_owned();
    let reject = lisa_core::broker::Verdict::Reject { error };
    assert_eq!(relay.settle(&read, reject).await, Settled::Garbage);
    let (mut told_later, handler) = rejecting(|_| async {});
    let running = start(&relay, handler);
    assert_eq!(next(&mut told_later).await.0.id.as_str(), "meanwhile");
    running.until(|report| report.garbage_hooks == 1).await;
    running.stop().await;
    assert!(told.try_recv().is_err() && told_later.try_recv().is_err());
    relay.assert_conserved().await;
}
