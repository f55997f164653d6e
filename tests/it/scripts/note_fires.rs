//! note_fires: notes the time up to which schedules have fired.

use lisa_core::broker::{FireResult, Fired, FiredOf, MissedTimes, Progress, SchedulePut};
use lisa_core::time::UnixMs;
use lisa_core::topic::ScheduleName;
use lisa_tests::Relay;

fn sent(until: u64) -> FireResult<'static> {
    FireResult::Sent(UnixMs::new(until))
}

/// Notes `until` (0 only asks) by a rule, and returns the time noted then.
async fn note(relay: &Relay, schedule: &str, until: u64, rule: &str) -> Option<u64> {
    let schedule: ScheduleName = schedule.parse().unwrap();
    let fired = Fired {
        result: Some(until).filter(|at| *at > 0).map(sent),
        ..Fired::ask(&schedule, FiredOf::Rule(rule))
    };
    let noted = relay.broker().note_fires(&[fired]).await.unwrap();
    noted[0].done.map(UnixMs::get)
}

async fn stored(relay: &Relay) -> String {
    let all = relay.snapshot().await;
    let rows = all.hash("v1:{registry}:schedules");
    let rows = rows.iter().map(|(name, note)| format!("{name}={note}"));
    rows.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn a_time_is_noted_and_never_goes_back() {
    let relay = Relay::start("note_fires").await;
    assert_eq!(note(&relay, "a", 0, "r").await, None);
    assert_eq!(note(&relay, "a", 1000, "r").await, Some(1000));
    assert_eq!(note(&relay, "a", 1000, "r").await, Some(1000));
    assert_eq!(note(&relay, "a", 500, "r").await, Some(1000));
    assert_eq!(note(&relay, "a", 0, "r").await, Some(1000));
    assert_eq!(note(&relay, "b", 0, "r").await, None);
    assert_eq!(stored(&relay).await, "a=1000 r");
    relay.assert_drained().await;
}

#[tokio::test]
async fn what_was_noted_of_another_rule_counts_for_nothing() {
    let relay = Relay::start("note_fires").await;
    note(&relay, "a", 9000, "0 * * * * * UTC").await;
    assert_eq!(note(&relay, "a", 0, "1 * * * * * UTC").await, None);
    assert_eq!(stored(&relay).await, "a=9000 0 * * * * * UTC");
    assert_eq!(note(&relay, "a", 7000, "1 * * * * * UTC").await, Some(7000));
    assert_eq!(stored(&relay).await, "a=7000 1 * * * * * UTC");
    relay.assert_drained().await;
}

#[tokio::test]
async fn what_was_noted_before_the_clock_was_set_back_counts_for_nothing() {
    let relay = Relay::start("note_fires").await;
    let now = relay.broker().connection().clock().now_ms();
    let (soon, far) = (now + 50_000, now + 70_000);
    assert_eq!(note(&relay, "soon", soon, "r").await, Some(soon));
    assert_eq!(note(&relay, "soon", 0, "r").await, Some(soon));
    note(&relay, "far", far, "r").await;
    assert_eq!(note(&relay, "far", 0, "r").await, None);
    assert_eq!(note(&relay, "far", now, "r").await, Some(now));
    relay.assert_drained().await;
}

#[tokio::test]
async fn several_schedules_are_noted_at_once_and_nonsense_is_no_note() {
    let relay = Relay::start("note_fires").await;
    let mut set = redis::cmd("HSET");
    let key = format!("{}:v1:{{registry}}:schedules", relay.broker().namespace());
    set.arg(key)
        .arg(&["a", "nonsense", "b", "-1 r", "c", "5 r"]);
    let _: u64 = relay.command(&set).await;
    let names: Vec<ScheduleName> = ["a", "b", "c"].map(|name| name.parse().unwrap()).into();
    let fires = |until: Option<u64>| {
        let fired = |schedule| Fired {
            result: until.map(sent),
            ..Fired::ask(schedule, FiredOf::Rule("r"))
        };
        names.iter().map(fired).collect::<Vec<_>>()
    };
    let done = |noted: Vec<Progress>| -> Vec<Option<u64>> {
        let done = noted.iter().map(|noted| noted.done.map(UnixMs::get));
        done.collect()
    };
    let asked = relay.broker().note_fires(&fires(None)).await.unwrap();
    assert_eq!(done(asked), [None, None, Some(5)]);
    let noted = relay.broker().note_fires(&fires(Some(4))).await.unwrap();
    assert_eq!(done(noted), [4, 4, 5].map(Some));
    assert_eq!(relay.broker().note_fires(&[]).await.unwrap(), []);
    relay.assert_drained().await;
}

/// Reads what went wrong with a schedule.
async fn faults(relay: &Relay, schedule: &ScheduleName) -> (MissedTimes, Option<String>) {
    let names = std::slice::from_ref(schedule);
    let read = relay.broker().read_schedules(names).await.unwrap();
    let faults = read[0].faults.clone();
    (faults.missed, faults.error.map(|(_, error)| error))
}

#[tokio::test]
async fn missed_times_add_up_once_each_and_an_error_is_forgotten_after_a_success() {
    use FireResult::{Failed, Ran, Refused};
    let relay = Relay::start("note_fires").await;
    let name: ScheduleName = "a".parse().unwrap();
    let note = async |result, count, newest| {
        let fired = Fired {
            result: Some(result),
            missed: MissedTimes {
                count,
                newest: UnixMs::new(newest),
            },
            ..Fired::ask(&name, FiredOf::Rule("r"))
        };
        relay.broker().note_fires(&[fired]).await.unwrap();
        let (missed, error) = faults(&relay, &name).await;
        (missed.count, missed.newest.get(), error)
    };
    let at = UnixMs::new;
    assert_eq!(note(sent(1000), 0, 0).await, (0, 0, None));
    assert_eq!(note(sent(5000), 3, 4000).await, (3, 4000, None));
    // Another manager notes the same.
    assert_eq!(note(sent(5000), 3, 4000).await, (3, 4000, None));
    let full = Some("topic t is full".to_owned());
    let failed = Failed(at(6000), "topic t is full");
    assert_eq!(note(failed, 0, 0).await, (3, 4000, full));
    assert_eq!(note(sent(6000), 0, 0).await, (3, 4000, None));
    // It failed before another manager sent it.
    assert_eq!(note(failed, 0, 0).await, (3, 4000, None));
    // A message that the topic refuses is a missed time and an error.
    let refused = Some("too large".to_owned());
    let refusal = Refused(at(7000), "too large");
    assert_eq!(note(refusal, 1, 7000).await, (4, 7000, refused));
    // An operator has sent one now.
    assert_eq!(note(Ran, 0, 0).await, (4, 7000, None));
    assert_eq!(stored(&relay).await, "a=7000 r");
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_error_without_a_missed_time_leaves_nothing_after_a_success() {
    let relay = Relay::start("note_fires").await;
    let name: ScheduleName = "a".parse().unwrap();
    let failed = FireResult::Failed(UnixMs::new(5), "no");
    for result in [failed, failed, sent(5)] {
        let before = relay.broker().read_schedules(std::slice::from_ref(&name));
        let before = before.await.unwrap();
        let fired = Fired {
            result: Some(result),
            ..Fired::ask(&name, FiredOf::Rule("r"))
        };
        relay.broker().note_fires(&[fired]).await.unwrap();
        let faults = relay.snapshot().await;
        let faults = faults.get("v1:{registry}:schedule_faults");
        assert_eq!(faults.is_some(), result == failed);
        let after = relay.broker().read_schedules(std::slice::from_ref(&name));
        let after = after.await.unwrap();
        // An error that goes on keeps its time.
        if result == failed && before[0].faults.error.is_some() {
            assert_eq!(after[0].faults, before[0].faults);
        }
    }
    relay.assert_drained().await;
}

#[tokio::test]
async fn what_was_sent_by_an_old_definition_is_not_noted() {
    let relay = Relay::start("note_fires").await;
    let broker = relay.broker();
    let name: ScheduleName = "a".parse().unwrap();
    let put = async |definition| match broker
        .put_schedule(&name, definition, "r", None, None)
        .await
    {
        Ok(SchedulePut::Put { version, .. }) => version,
        other => panic!("{other:?}"),
    };
    let old = put("{}").await;
    let new = put("{ }").await;
    let before = broker
        .read_schedules(std::slice::from_ref(&name))
        .await
        .unwrap();
    let later = UnixMs::new(before[0].done.unwrap().get() + 1000);
    let note = async |version| {
        let fired = Fired {
            result: Some(FireResult::Sent(later)),
            take: Some(UnixMs::new(7)),
            ..Fired::ask(&name, FiredOf::Version(version))
        };
        broker.note_fires(&[fired]).await.unwrap()[0].done
    };
    assert_eq!(note(old).await, None);
    let same = broker
        .read_schedules(std::slice::from_ref(&name))
        .await
        .unwrap();
    assert_eq!(same, before);
    assert_eq!(note(new).await, Some(later));
    let after = broker
        .read_schedules(std::slice::from_ref(&name))
        .await
        .unwrap();
    assert_eq!(
        (after[0].done, after[0].version, &*after[0].rule),
        (Some(later), new, "r")
    );
    let next = broker.next_schedules(UnixMs::new(7), 10).await.unwrap();
    assert_eq!(next, std::slice::from_ref(&name));
    // One that was removed does not come back.
    broker.remove_schedule(&name, None).await.unwrap();
    assert_eq!(note(new).await, None);
    relay.assert_drained().await;
}
