//! Tests of supervision: each way in which a task can fail, and the health that results.

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::AtomicUsize;

use super::*;

const QUICK: Policy = Policy::Restart {
    backoff: Backoff {
        base: Duration::from_millis(60),
        cap: Duration::from_secs(1),
    },
};

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "not seen within a minute: {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn looping(
    shutdown: &Shutdown,
) -> impl Future<Output = Result<(), Infallible>> + Send + 'static + use<> {
    let draining = shutdown.draining().clone();
    async move {
        draining.cancelled().await;
        Ok(())
    }
}

#[tokio::test]
async fn a_killed_task_turns_red_and_is_restarted() {
    let shutdown = Shutdown::manual(Duration::from_secs(5));
    let supervisor = Supervisor::new(&shutdown);
    let loops = shutdown.clone();
    supervisor.spawn("mover", QUICK, move |_| looping(&loops));
    let health = supervisor.health();
    until("started", || {
        health.tasks.lock()[0].current.lock().is_some()
    })
    .await;
    assert!(health.is_green());
    assert!(supervisor.abort("mover"));
    until("red", || !health.is_green()).await;
    until("green again", || health.is_green()).await;
    let task = &health.tasks()[0];
    assert_eq!(
        (task.restarts, task.last_error.as_deref()),
        (1, Some("killed"))
    );
    shutdown.begin();
    supervisor.join().await.unwrap();
    assert!(health.is_green(), "a task that ended as asked is well");
}

#[tokio::test]
async fn a_stuck_task_turns_red_and_a_beat_turns_it_green() {
    let shutdown = Shutdown::manual(Duration::ZERO);
    let supervisor = Supervisor::new(&shutdown);
    let heartbeats = Arc::new(Mutex::new(None));
    let slot = heartbeats.clone();
    supervisor.spawn("fetch", QUICK, move |heartbeat| {
        heartbeat.within(Duration::from_millis(40));
        *slot.lock() = Some(heartbeat);
        pending::<Result<(), Infallible>>()
    });
    let health = supervisor.health();
    until("red", || !health.is_green()).await;
    assert!(health.tasks()[0].alive);
    heartbeats.lock().as_ref().unwrap().ok();
    assert!(health.is_green());
}

#[tokio::test]
async fn panics_errors_and_plain_ends_are_all_restarted() {
    let shutdown = Shutdown::manual(Duration::from_secs(5));
    let supervisor = Supervisor::new(&shutdown);
    let runs = Arc::new(AtomicUsize::new(0));
    let (count, stop) = (runs.clone(), shutdown.clone());
    supervisor.spawn("jobs", QUICK, move |_| {
        let run = count.fetch_add(1, Ordering::Relaxed);
        assert!(run != 3, "before the future");
        let stop = stop.clone();
        async move {
            match run {
                0 => panic!("boom"),
                1 => Err("no luck"),
                2 => Ok(()),
                _ => {
                    stop.draining().cancelled().await;
                    Ok(())
                }
            }
        }
    });
    until("a fifth run", || runs.load(Ordering::Relaxed) == 5).await;
    let task = supervisor.health().tasks().remove(0);
    assert_eq!(task.restarts, 4);
    assert_eq!(
        task.last_error.as_deref(),
        Some("panicked: before the future")
    );
    shutdown.begin();
    supervisor.join().await.unwrap();
}

#[tokio::test]
async fn a_vital_task_that_ends_by_itself_ends_the_process() {
    let shutdown = Shutdown::manual(Duration::from_secs(5));
    let supervisor = Supervisor::new(&shutdown);
    let loops = shutdown.clone();
    supervisor.spawn("other", QUICK, move |_| looping(&loops));
    supervisor.spawn("vital", Policy::EndProcess, |_| async {
        Ok::<(), Infallible>(())
    });
    let error = supervisor.join().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "task vital ended the process: ended unexpectedly"
    );
    assert!(shutdown.draining().is_cancelled());
}

#[tokio::test]
async fn join_cuts_off_a_task_that_ignores_the_shutdown() {
    let shutdown = Shutdown::manual(Duration::from_millis(10));
    let supervisor = Supervisor::new(&shutdown);
    supervisor.spawn("deaf", QUICK, |_| pending::<Result<(), Infallible>>());
    shutdown.begin();
    match supervisor.join().await {
        Err(SupervisorError::Unfinished { names }) => assert_eq!(names, ["deaf"]),
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn pauses_grow_up_to_the_cap() {
    let backoff = Backoff::default();
    let pause = |failures| backoff.pause(failures).as_secs_f64();
    assert!((0.8..=1.0).contains(&pause(0)));
    assert!((3.2..=4.0).contains(&pause(2)));
    assert!((24.0..=30.0).contains(&pause(40)));
}

#[tokio::test]
async fn a_part_that_panics_is_restarted_alone_and_shows_until_it_runs_on() {
    let shutdown = Shutdown::manual(Duration::from_secs(5));
    let metrics = Metrics::new(Default::default(), "0", "manager");
    let supervisor = Supervisor::new(&shutdown).counting(&metrics);
    let (runs, other) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let (sick, well, stop) = (runs.clone(), other.clone(), shutdown.clone());
    supervisor.spawn("loops", QUICK, move |heartbeat| {
        let (sick, well, stop) = (sick.clone(), well.clone(), stop.clone());
        let name = |topic: &str| PartName {
            kind: "loop",
            topic: topic.parse().unwrap(),
            group: None,
            shard: Some(lisa_core::topic::Shard::new(0)),
        };
        let Policy::Restart { backoff } = QUICK else {
            unreachable!();
        };
        async move {
            let (a, b) = (heartbeat.part(name("sick")), heartbeat.part(name("well")));
            let a = a.with_backoff(backoff);
            let draining = stop.draining();
            tokio::join!(
                a.keep(draining, || {
                    let run = sick.fetch_add(1, Ordering::Relaxed);
                    let draining = draining.clone();
                    async move {
                        assert!(run > 2, "boom");
                        draining.cancelled().await;
                        Ok::<(), Infallible>(())
                    }
                }),
                b.keep(draining, || async {
                    while !draining.is_cancelled() {
                        well.fetch_add(1, Ordering::Relaxed);
                        heartbeat.ok();
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    Ok::<(), Infallible>(())
                }),
            );
            Ok::<(), Infallible>(())
        }
    });
    let health = supervisor.health();
    until("degraded", || health.is_degraded()).await;
    let task = health.tasks().remove(0);
    assert_eq!(
        (task.green, task.restarts, task.failing.len()),
        (true, 0, 1)
    );
    let part = &task.failing[0];
    assert_eq!(
        (part.name.as_str(), part.error.as_str()),
        ("loop sick:0", "panicked: boom")
    );
    until("three falls", || runs.load(Ordering::Relaxed) == 4).await;
    let before = other.load(Ordering::Relaxed);
    until("the other goes on", || {
        other.load(Ordering::Relaxed) > before
    })
    .await;
    until("recovered", || !health.is_degraded()).await;
    let text = metrics.encode();
    assert!(
        text.contains(r#"lisa_panics_total{task="loop"} 3"#),
        "{text}"
    );
    shutdown.begin();
    supervisor.join().await.unwrap();
}

#[tokio::test]
async fn a_contained_panic_is_counted_and_ends_nothing_else() {
    let metrics = Metrics::new(Default::default(), "0", "manager");
    let panics = contain("side", Some(&metrics), async { panic!("boom") });
    assert_eq!(panics.await, Err("panicked: boom".to_owned()));
    assert_eq!(contain("side", Some(&metrics), async {}).await, Ok(()));
    let text = metrics.encode();
    assert!(
        text.contains(r#"lisa_panics_total{task="side"} 1"#),
        "{text}"
    );
}
