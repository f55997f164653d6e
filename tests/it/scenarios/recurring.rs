//! Recurring messages: each time once, to the millisecond, by any number of managers, of which one is killed.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, Line, lines, millis};
use lisa_tests::{Binary, SOON, Stopwatch, eventually};
use serde_json::Value;
use std::time::Duration;

const SCHEDULES: &str = r#"
    [schedules.tick]
    topic = "orders"
    cron = "* * * * * *"
    payload = "tock"

    [schedules.yearly]
    topic = "orders"
    cron = "0 0 0 1 1 *"
    time_zone = "Europe/Berlin"
"#;

/// The times of the lines, in their order: each a whole second in the id and the due time.
fn times(lines: &[Line]) -> Vec<i64> {
    let time = |line: &Line| {
        let due = millis(&line.due_at);
        let named = jiff::Timestamp::from_millisecond(due).unwrap();
        let id = named.strftime("tick:%Y%m%dT%H%M%SZ").to_string();
        assert_eq!((line.id.as_str(), due % 1000), (id.as_str(), 0), "{line:?}");
        assert_eq!(
            (line.payload.as_str(), line.attempt),
            ("tock", 1),
            "{line:?}"
        );
        due
    };
    lines.iter().map(time).collect()
}

#[tokio::test]
async fn three_managers_send_once_for_each_second_though_one_of_them_is_killed() {
    let here = Deployment::start("").await.with(SCHEDULES);
    let mut managers = [
        here.manager().await,
        here.manager().await,
        here.manager().await,
    ];
    let mut consumer = here.consumer(STDOUT).await;
    // Managers that have just started may be too late for the first seconds. What is ahead of the clock is not.
    let ahead = eventually(SOON, async || {
        let shown = managers[0].api.get_json("/v1/schedules").await;
        let until = shown["schedules"][0]["sent_until"].as_str().map(millis);
        until
            .filter(|until| *until > jiff::Timestamp::now().as_millisecond())
            .ok_or(shown)
    })
    .await;
    let (watch, mut got) = (Stopwatch::start(), Vec::new());
    while got.len() < 2 {
        let line = lines(&mut consumer, 1, SOON).await;
        got.extend(
            line.into_iter()
                .filter(|line| millis(&line.due_at) >= ahead),
        );
    }
    // The manager that holds the topic sends ahead for the others.
    let holder = eventually(SOON, async || {
        for (index, manager) in managers.iter().enumerate() {
            if manager.api.get_json("/v1/workers").await["shards_held"] == 1 {
                return Ok(index);
            }
        }
        Err("nobody holds the topic")
    })
    .await;
    managers[holder].process.kill9();
    got.extend(lines(&mut consumer, 6, SOON).await);

    let times = times(&got);
    assert!(
        times.windows(2).all(|two| two[1] == two[0] + 1000),
        "{times:?}"
    );
    let late: Vec<i64> = got.iter().map(|line| line.lateness_ms).collect();
    // The killed one held the movers, too: a message due meanwhile is as late as any other.
    let limit = watch.limit(Duration::ZERO, Duration::from_millis(250));
    let in_time = late.iter().filter(|late| **late < limit.as_millis() as i64);
    assert!(in_time.count() >= 4, "{late:?}, limit {limit:?}");
    let (code, shown) = here.json(Binary::Manager, &["schedules"]).await;
    let alive = &managers[(holder + 1) % 3];
    let over_http = alive.api.get_json("/v1/schedules").await;
    for shown in [&shown, &over_http] {
        let (tick, yearly) = (&shown["schedules"][0], &shown["schedules"][1]);
        assert_eq!(
            (code, &tick["schedule"], &tick["topic"]),
            (0, &"tick".into(), &TOPIC.into())
        );
        let last = millis(tick["sent_until"].as_str().unwrap());
        assert!(
            last >= *times.last().unwrap() && last % 1000 == 0,
            "{shown}"
        );
        assert_eq!(
            (&yearly["sent_until"], &yearly["time_zone"]),
            (&Value::Null, &"Europe/Berlin".into())
        );
        let next = yearly["next"].as_str().unwrap();
        assert!(next.ends_with("-12-31T23:00:00.000Z"), "{shown}");
    }
    let table = here.verb(Binary::Manager, &["schedules"]).await.stdout;
    assert!(
        table.contains("SCHEDULE") && table.contains("0 0 0 1 1 *"),
        "{table}"
    );

    // No manager sends any more; messages sent ahead still come.
    for (index, manager) in managers.iter_mut().enumerate() {
        if index != holder {
            manager.stop().await;
        }
    }
    let here = here.with("");
    let mut last = here.manager().await;
    here.drained().await;
    here.conserved().await;
    last.stop().await;
}
