//! put_schedule, remove_schedule, pause_schedule and take_fires: the schedules that were created at run time.

use std::time::Duration;

use lisa_core::broker::{
    FireResult, Fired, FiredOf, MissedTimes, SchedulePut, ScheduleRemoved, StoredSchedule,
    TakenFires,
};
use lisa_core::time::UnixMs;
use lisa_core::topic::{OverScheduleQuota, ScheduleName, ScheduleQuota};
use lisa_tests::Relay;
use lisa_tests::relay::ms;

const LEASE: Duration = Duration::from_mins(1);

fn name(text: &str) -> ScheduleName {
    text.parse().unwrap()
}

async fn put(relay: &Relay, schedule: &str, definition: &str, at: Option<u64>) -> SchedulePut {
    let name = name(schedule);
    let put = relay
        .broker()
        .put_schedule(&name, definition, "r", at, None);
    put.await.unwrap()
}

/// Creates a schedule, and returns its version.
async fn create(relay: &Relay, schedule: &str) -> u64 {
    match put(relay, schedule, "{}", Some(0)).await {
        SchedulePut::Put {
            version,
            created: true,
        } => version,
        other => panic!("{other:?}"),
    }
}

async fn read(relay: &Relay, schedule: &str) -> StoredSchedule {
    let names = [name(schedule)];
    let mut read = relay.broker().read_schedules(&names).await.unwrap();
    read.remove(0)
}

async fn take(relay: &Relay) -> TakenFires {
    relay.broker().take_fires(10, LEASE).await.unwrap()
}

fn names(taken: &TakenFires) -> Vec<&str> {
    taken
        .taken
        .iter()
        .map(|taken| taken.schedule.as_str())
        .collect()
}

#[tokio::test]
async fn a_definition_is_replaced_only_at_the_version_that_was_read() {
    let relay = Relay::start("schedules").await;
    let first = create(&relay, "a").await;
    assert_eq!(
        put(&relay, "a", "{}", Some(0)).await,
        SchedulePut::Unchanged(first)
    );
    assert_eq!(
        put(&relay, "a", "{ }", Some(0)).await,
        SchedulePut::Other(first)
    );
    assert_eq!(put(&relay, "b", "{}", Some(7)).await, SchedulePut::Other(0));
    let SchedulePut::Put {
        version: second,
        created: false,
    } = put(&relay, "a", "{ }", Some(first)).await
    else {
        panic!("changed");
    };
    assert!(second > first);
    assert_eq!(
        put(&relay, "a", "{  }", Some(first)).await,
        SchedulePut::Other(second)
    );
    // Repeated: its answer was lost.
    assert_eq!(
        put(&relay, "a", "{ }", Some(first)).await,
        SchedulePut::Unchanged(second)
    );
    let stored = read(&relay, "a").await;
    assert_eq!(
        (stored.definition.as_deref(), stored.version),
        (Some("{ }"), second)
    );
    let remove = async |at| relay.broker().remove_schedule(&name("a"), at).await;
    assert_eq!(
        remove(Some(first)).await.unwrap(),
        ScheduleRemoved::Other(second)
    );
    assert_eq!(
        remove(Some(second)).await.unwrap(),
        ScheduleRemoved::Removed
    );
    assert_eq!(remove(Some(second)).await.unwrap(), ScheduleRemoved::Absent);
    // Its version goes on.
    assert!(create(&relay, "a").await > second);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_removed_schedule_leaves_nothing() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    let empty = relay.snapshot().await;
    let version = create(&relay, "a").await;
    let taken = take(&relay).await;
    let fired = Fired {
        result: Some(FireResult::Failed(taken.now.plus(LEASE), "no")),
        ..Fired::ask(&taken.taken[0].schedule, FiredOf::Version(version))
    };
    broker.note_fires(&[fired]).await.unwrap();
    broker
        .pause_schedule(&name("a"), true, false)
        .await
        .unwrap();
    let stored = read(&relay, "a").await;
    assert!(stored.paused.is_some() && stored.faults.error.is_some());
    // A pause also removes its times.
    create(&relay, "b").await;
    for schedule in ["a", "b"] {
        let removed = broker.remove_schedule(&name(schedule), None).await;
        assert_eq!(removed.unwrap(), ScheduleRemoved::Removed);
    }
    assert_eq!(relay.snapshot().await, empty);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_schedule_that_is_paused_while_a_manager_sends_for_it_is_not_taken_again() {
    let relay = Relay::start("schedules").await;
    let (schedule, version) = (name("a"), create(&relay, "a").await);
    let taken = take(&relay).await;
    assert_eq!(names(&taken), ["a"]);
    let paused = relay.broker().pause_schedule(&schedule, true, false).await;
    assert_eq!(paused.unwrap(), Some(true));
    let fired = Fired {
        result: Some(FireResult::Sent(taken.now.plus(LEASE))),
        take: Some(taken.now),
        ..Fired::ask(&schedule, FiredOf::Version(version))
    };
    let noted = relay.broker().note_fires(&[fired]).await.unwrap();
    assert!(noted[0].done.is_some() && noted[0].is_paused);
    relay.step(120_000);
    assert!(names(&take(&relay).await).is_empty());
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_change_of_the_rule_begins_again_and_another_change_does_not() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    let version = create(&relay, "a").await;
    let begun = read(&relay, "a").await.done.unwrap();
    let sent = UnixMs::new(begun.get() + 5000);
    let a = name("a");
    let fired = Fired {
        result: Some(FireResult::Sent(sent)),
        ..Fired::ask(&a, FiredOf::Version(version))
    };
    broker.note_fires(&[fired]).await.unwrap();
    put(&relay, "a", "{ }", None).await;
    assert_eq!(read(&relay, "a").await.done, Some(sent));
    broker
        .put_schedule(&name("a"), "{  }", "s", None, None)
        .await
        .unwrap();
    let stored = read(&relay, "a").await;
    assert!(stored.done.unwrap() < sent && stored.rule == "s");
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_schedule_is_taken_once_in_a_lease_and_then_when_its_manager_has_noted() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    assert_eq!(names(&take(&relay).await), [""; 0]);
    let version = create(&relay, "a").await;
    let taken = take(&relay).await;
    assert_eq!(names(&taken), ["a"]);
    assert_eq!(
        (taken.taken[0].version, &*taken.taken[0].definition),
        (version, "{}")
    );
    assert_eq!(Some(taken.taken[0].done), read(&relay, "a").await.done);
    let next = taken.next.unwrap();
    assert!(next <= LEASE && next > LEASE / 2, "{next:?}");
    assert_eq!(names(&take(&relay).await), [""; 0]);
    // A change is taken at once.
    put(&relay, "a", "{ }", None).await;
    let taken = take(&relay).await;
    assert_eq!(names(&taken), ["a"]);
    let again = Fired {
        take: Some(UnixMs::new(1)),
        ..Fired::ask(
            &taken.taken[0].schedule,
            FiredOf::Version(taken.taken[0].version),
        )
    };
    broker.note_fires(&[again]).await.unwrap();
    assert_eq!(names(&take(&relay).await), ["a"]);
    // A lease that has ended.
    put(&relay, "a", "{}", None).await;
    assert_eq!(
        names(&broker.take_fires(10, Duration::ZERO).await.unwrap()),
        ["a"]
    );
    assert_eq!(names(&broker.take_fires(10, LEASE).await.unwrap()), ["a"]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_call_takes_a_bounded_number_and_a_bounded_size() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    let large = "x".repeat(60 * 1024);
    for index in 0..30 {
        put(&relay, &format!("s{index}"), &large, None).await;
    }
    let taken = broker.take_fires(5, LEASE).await.unwrap();
    assert_eq!((taken.taken.len(), taken.next), (5, Some(Duration::ZERO)));
    let taken = broker.take_fires(1000, LEASE).await.unwrap();
    assert_eq!(
        (taken.taken.len(), taken.next),
        (18, Some(Duration::ZERO)),
        "1 MiB"
    );
    let taken = broker.take_fires(1000, LEASE).await.unwrap();
    assert_eq!(taken.taken.len(), 7);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_paused_schedule_is_not_taken_and_begins_again_when_it_is_resumed() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    create(&relay, "a").await;
    let begun = read(&relay, "a").await.done.unwrap();
    let pause = async |paused, is_declared| {
        let name = name("a");
        let done = broker.pause_schedule(&name, paused, is_declared);
        done.await.unwrap()
    };
    assert_eq!(pause(true, false).await, Some(true));
    assert_eq!(pause(true, false).await, Some(false));
    assert!(read(&relay, "a").await.paused.is_some());
    assert_eq!(names(&take(&relay).await), [""; 0]);
    put(&relay, "a", "{ }", None).await;
    assert_eq!(names(&take(&relay).await), [""; 0], "also after a change");
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(pause(false, false).await, Some(true));
    assert_eq!(pause(false, false).await, Some(false));
    assert!(read(&relay, "a").await.done.unwrap() > begun);
    assert_eq!(names(&take(&relay).await), ["a"]);
    let unknown = broker
        .pause_schedule(&name("b"), true, false)
        .await
        .unwrap();
    assert_eq!(unknown, None);
    relay.assert_drained().await;
}

#[tokio::test]
async fn the_progress_before_pauses_is_kept_until_a_schedule_sends_again() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    create(&relay, "a").await;
    let sent = async |time| {
        let stored = read(&relay, "a").await;
        let fired = Fired {
            result: Some(FireResult::Sent(time)),
            ..Fired::ask(&stored.name, FiredOf::Version(stored.version))
        };
        broker.note_fires(&[fired]).await.unwrap();
    };
    let first = read(&relay, "a").await.done.unwrap().plus(ms(1));
    sent(first).await;
    for pause in ["first", "second"] {
        for paused in [true, false] {
            // Redis's clock is in ms.
            tokio::time::sleep(ms(5)).await;
            let done = broker.pause_schedule(&name("a"), paused, false).await;
            assert_eq!(done.unwrap(), Some(true));
        }
        let stored = read(&relay, "a").await;
        assert!(stored.done > Some(first), "{pause} {stored:?}");
        assert_eq!(stored.before_pause, Some(first), "{pause}");
    }
    let next = read(&relay, "a").await.done.unwrap().plus(ms(1));
    sent(next).await;
    let stored = read(&relay, "a").await;
    assert_eq!((stored.done, stored.before_pause), (Some(next), None));
    let removed = broker.remove_schedule(&name("a"), None).await;
    assert_eq!(removed.unwrap(), ScheduleRemoved::Removed);
    let left = relay.snapshot().await;
    assert!(left.get("v1:{registry}:resumed_schedules").is_none());
    relay.assert_drained().await;
}

#[tokio::test]
async fn one_that_a_configuration_declares_can_be_paused_and_says_so() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    let name = name("a");
    let pause = async |paused| broker.pause_schedule(&name, paused, true).await.unwrap();
    let ask = async || {
        let ask = [Fired::ask(&name, FiredOf::Rule("r"))];
        broker.note_fires(&ask).await.unwrap()[0]
    };
    assert_eq!(pause(true).await, Some(true));
    assert!(ask().await.is_paused);
    let noted = Fired {
        result: Some(FireResult::Sent(UnixMs::new(5))),
        ..Fired::ask(&name, FiredOf::Rule("r"))
    };
    broker.note_fires(&[noted]).await.unwrap();
    assert_eq!(pause(false).await, Some(true));
    let progress = ask().await;
    assert!(!progress.is_paused && progress.done.unwrap() > UnixMs::new(5));
    assert_eq!(names(&take(&relay).await), [""; 0]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn names_are_listed_in_order_by_prefix_and_page() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    for schedule in ["b", "shop-a", "shop-b", "shop", "shop_z", "a"] {
        create(&relay, schedule).await;
    }
    let list = async |prefix, after: Option<&str>, limit| {
        let after = after.map(name);
        let names = broker.schedule_names(prefix, after.as_ref(), limit);
        let names = names.await.unwrap();
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let all = ["a", "b", "shop", "shop-a", "shop-b", "shop_z"];
    assert_eq!(list("", None, 10).await, all);
    assert_eq!(list("", Some("b"), 2).await, ["shop", "shop-a"]);
    assert_eq!(list("shop-", None, 10).await, ["shop-a", "shop-b"]);
    assert_eq!(list("shop", Some("shop-a"), 10).await, ["shop-b", "shop_z"]);
    assert_eq!(list("shop", Some("a"), 10).await, all[2..]);
    assert_eq!(list("z", None, 10).await, [""; 0]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_new_schedule_has_nothing_of_one_that_a_file_declared() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    let name = name("a");
    broker.pause_schedule(&name, true, true).await.unwrap();
    let failed = Fired {
        result: Some(FireResult::Failed(UnixMs::new(5), "no")),
        ..Fired::ask(&name, FiredOf::Rule("r"))
    };
    broker.note_fires(&[failed]).await.unwrap();
    create(&relay, "a").await;
    let stored = read(&relay, "a").await;
    assert!(
        stored.paused.is_none() && stored.faults.error.is_none(),
        "{stored:?}"
    );
    assert_eq!(names(&take(&relay).await), ["a"]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn times_from_before_the_clock_was_set_back_begin_again() {
    let relay = Relay::start("schedules").await;
    let version = create(&relay, "a").await;
    let far = read(&relay, "a").await.done.unwrap().get() + 3_600_000;
    let key = format!(
        "{}:v1:{{registry}}:schedule_progress",
        relay.broker().namespace()
    );
    let set_far = async |version: u64| {
        let mut set = redis::cmd("HSET");
        set.arg(&key).arg("a").arg(format!("{far} {version} r"));
        let _: u64 = relay.command(&set).await;
    };
    set_far(version).await;
    let taken = take(&relay).await;
    assert_eq!(taken.taken[0].done, taken.now);
    put(&relay, "a", "{ }", None).await;
    let stored = read(&relay, "a").await;
    assert!(stored.done.unwrap().get() < far);
    set_far(stored.version).await;
    for paused in [true, false] {
        let pause = relay.broker().pause_schedule(&stored.name, paused, false);
        pause.await.unwrap();
    }
    assert!(read(&relay, "a").await.done.unwrap().get() < far);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_change_ends_the_error_of_the_definition_before() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    let version = create(&relay, "a").await;
    let a = name("a");
    let later = UnixMs::new(read(&relay, "a").await.done.unwrap().get() + 1000);
    let refused = Fired {
        result: Some(FireResult::Refused(later, "too large")),
        missed: MissedTimes {
            count: 1,
            newest: later,
        },
        ..Fired::ask(&a, FiredOf::Version(version))
    };
    broker.note_fires(&[refused]).await.unwrap();
    assert!(read(&relay, "a").await.faults.error.is_some());
    put(&relay, "a", "{ }", None).await;
    let faults = read(&relay, "a").await.faults;
    assert_eq!((faults.error, faults.missed.count), (None, 1));
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_quota_counts_the_schedules_with_its_names_and_refuses_one_too_many() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    for other in ["mail2", "shop", "shoq", "s", "z"] {
        create(&relay, other).await;
    }
    let patterns = ["shop-*", "shop-eu-*", "mail"].map(|pattern| pattern.parse().unwrap());
    let put = async |schedule: &str, definition: &str, most: u32| {
        let quota = ScheduleQuota::new(&patterns, most);
        let name = name(schedule);
        let put = broker.put_schedule(&name, definition, "r", None, Some(&quota));
        (
            put.await.unwrap(),
            broker.count_schedules(&quota).await.unwrap(),
        )
    };
    let mut stored = 0;
    for name in ["shop-a", "mail", "shop-eu-a", "shop-z"] {
        let over = OverScheduleQuota {
            max_schedules: stored,
            schedules: stored.into(),
        };
        assert_eq!(
            put(name, "{}", stored).await,
            (SchedulePut::OverQuota(over), stored.into()),
            "{name}"
        );
        stored += 1;
        let (done, count) = put(name, "{}", stored).await;
        assert!(
            matches!(done, SchedulePut::Put { created: true, .. }),
            "{name}: {done:?}"
        );
        assert_eq!(count, u64::from(stored), "{name}");
    }
    // One that exists can still be changed if the quota is lowered, and a repeated call is answered.
    let (changed, _) = put("mail", "{ }", 0).await;
    assert!(
        matches!(changed, SchedulePut::Put { created: false, .. }),
        "{changed:?}"
    );
    let (repeated, _) = put("mail", "{ }", 0).await;
    assert!(
        matches!(repeated, SchedulePut::Unchanged(_)),
        "{repeated:?}"
    );
    let removed = broker.remove_schedule(&name("shop-z"), None).await;
    assert_eq!(removed.unwrap(), ScheduleRemoved::Removed);
    let (again, count) = put("shop-b", "{}", 4).await;
    assert!(matches!(again, SchedulePut::Put { .. }), "{again:?}");
    assert_eq!(count, 4);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_schedule_is_listed_as_failing_until_it_sends_or_is_changed_paused_or_removed() {
    let relay = Relay::start("schedules").await;
    let broker = relay.broker();
    let failing = async || {
        let names = broker.failing_schedules("", 10).await.unwrap();
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let note = async |schedule: &str, error: Option<&str>| {
        let stored = read(&relay, schedule).await;
        let later = stored.done.unwrap().plus(Duration::from_secs(1));
        let fired = Fired {
            result: Some(error.map_or(FireResult::Sent(later), |error| {
                FireResult::Failed(later, error)
            })),
            ..Fired::ask(&stored.name, FiredOf::Version(stored.version))
        };
        broker.note_fires(&[fired]).await.unwrap();
    };
    let pause = async |paused| {
        let done = broker.pause_schedule(&name("a"), paused, false).await;
        assert_eq!(done.unwrap(), Some(true));
    };
    for schedule in ["c", "b", "a", "ab"] {
        create(&relay, schedule).await;
        note(schedule, Some("no")).await;
    }
    assert_eq!(failing().await, ["a", "ab", "b", "c"]);
    let some = broker.failing_schedules("a", 10).await.unwrap();
    assert_eq!(some, [name("a"), name("ab")]);
    assert_eq!(broker.failing_schedules("", 1).await.unwrap().len(), 1);
    note("c", None).await;
    put(&relay, "b", "{ }", None).await;
    broker.remove_schedule(&name("ab"), None).await.unwrap();
    assert_eq!(failing().await, ["a"]);
    // Its error is from before the pause, then from a send during it.
    pause(true).await;
    assert_eq!(failing().await, [""; 0]);
    note("a", Some("no")).await;
    assert_eq!(failing().await, [""; 0]);
    pause(false).await;
    assert_eq!(failing().await, ["a"]);
    note("a", None).await;
    pause(true).await;
    pause(false).await;
    assert_eq!(failing().await, [""; 0]);
    relay.assert_drained().await;
}
