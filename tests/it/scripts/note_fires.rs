//! note_fires: notes the time up to which schedules have fired.

use lisa_core::broker::Fired;
use lisa_core::time::UnixMs;
use lisa_core::topic::ScheduleName;
use lisa_tests::Relay;

/// Notes `until` (0 only asks) by a rule, and returns the time noted then.
async fn note(relay: &Relay, schedule: &str, until: u64, rule: &str) -> Option<u64> {
    let schedule: ScheduleName = schedule.parse().unwrap();
    let fired = Fired {
        schedule: &schedule,
        until: Some(UnixMs::new(until)).filter(|at| at.get() > 0),
        rule,
    };
    let noted = relay.broker().note_fires(&[fired]).await.unwrap();
    noted[0].map(UnixMs::get)
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
            schedule,
            until: until.map(UnixMs::new),
            rule: "r",
        };
        names.iter().map(fired).collect::<Vec<_>>()
    };
    let asked = relay.broker().note_fires(&fires(None)).await.unwrap();
    assert_eq!(asked, [None, None, Some(UnixMs::new(5))]);
    let noted = relay.broker().note_fires(&fires(Some(4))).await.unwrap();
    assert_eq!(noted, [4, 4, 5].map(|at| Some(UnixMs::new(at))));
    assert_eq!(relay.broker().note_fires(&[]).await.unwrap(), []);
    relay.assert_drained().await;
}
