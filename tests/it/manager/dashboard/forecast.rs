//! When messages become due: round steps in the time zone of the viewer, and the busiest minute.

use super::*;
use lisa_core::time::UnixMs;

const MINUTE: u64 = 60_000;

/// Returns the starts of the steps in the table of a page.
fn begins(page: &str) -> Vec<String> {
    let (_, table) = page.split_once("id=\"forecast-table\"").expect("a table");
    let (table, _) = table.split_once("</table>").unwrap();
    let times = table.split("datetime=\"").skip(1);
    times
        .map(|time| time.split('"').next().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_are_round_in_the_zone_of_the_viewer_and_the_peak_is_a_minute() {
    let site = Site::start("").await;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let now = u64::try_from(now.as_millis()).unwrap();
    let soon = [("Lisa-Delay", "30m")];
    site.api.send("t", "x", &soon).await.expect(202);
    let burst = (now / MINUTE + 69) * MINUTE;
    let at = UnixMs::new(burst + 30_000).to_string();
    for _ in 0..4 {
        let headers = [("Lisa-Deliver-At", at.as_str())];
        site.api.send("t", "x", &headers).await.expect(202);
    }
    // Days later, a step has more messages, but no minute of it has.
    for n in 0..6 {
        let at = UnixMs::new((now / MINUTE + 3 * 24 * 60 + 2 * n) * MINUTE).to_string();
        let headers = [("Lisa-Deliver-At", at.as_str())];
        site.api.send("t", "x", &headers).await.expect(202);
    }
    let zones = [
        ("", "UTC", "00:00.000Z"),
        ("lisa-zone=nowhere", "UTC", "00:00.000Z"),
        ("lisa-zone=Asia/Kathmandu", "Asia/Kathmandu", "15:00.000Z"),
        (
            "lisa-zone=Asia/Kathmandu; lisa-choices=dark-2-utc-on",
            "UTC",
            "00:00.000Z",
        ),
    ];
    for (cookies, zone, end) in zones {
        for (seconds, end) in [(3_600, "00.000Z"), (7 * 24 * 3_600, end)] {
            let path = format!("/forecast?for={seconds}");
            let (_, page) = site.get(&path, cookies).await;
            let begins = begins(&page);
            // The first step begins now.
            let round = begins[1..].iter().filter(|begin| begin.ends_with(end));
            assert_eq!(round.count(), begins.len() - 1, "{cookies} {begins:?}");
            assert!(page.contains(&format!("Times are in {zone}.")), "{page}");
            assert!(page.matches("text-anchor").count() >= 4, "{page}");
        }
        let (_, page) = site.get("/forecast?for=604800", cookies).await;
        let (_, peak) = page.split_once("<dt>Peak</dt>").unwrap();
        let (peak, _) = peak.split_once("</div>").unwrap();
        let begin = UnixMs::new(burst).to_string();
        for text in [">4<", "in 1 min", &begin] {
            assert!(peak.contains(text), "{text}: {peak}");
        }
    }
    let view = site.api.get_json("/v1/forecast?for=7d").await;
    assert_eq!(view["step_ms"], 3 * 3_600_000, "{view:#}");
    let peak = &view["peak"];
    assert_eq!(
        (&peak["messages"], &peak["is_lower_bound"]),
        (&json!(4), &json!(false)),
        "{peak}"
    );
}
