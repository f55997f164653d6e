//! A large file through the import verb.

use super::Deployment;
use super::deployment::TOPIC;
use lisa_tests::Binary;
use serde_json::Value;
use std::fmt::Write;

const LINES: usize = 20_000;
/// Each line of a number divisible by this is broken.
const BROKEN: usize = 1_000;

#[tokio::test]
async fn an_import_counts_its_lines_keeps_the_refused_and_can_be_repeated() {
    let here = Deployment::start("").await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("old.ndjson");
    let mut text = String::new();
    for number in 1..=LINES {
        let line = match (number % BROKEN, number / BROKEN % 4) {
            (0, 0) => "{\"payload\": ".to_owned(),
            (0, 1) => format!("{{\"payload\": {number}, \"delay\": \"soon\"}}"),
            (0, 2) => format!("{{\"payload\": {number}, \"dealy\": \"1h\"}}"),
            (0, _) => format!("{{\"payload\": {number}, \"id\": \"not an id\"}}"),
            _ => format!("{{\"payload\": {number}, \"delay\": \"1h\"}}"),
        };
        writeln!(text, "{line}").expect("a string takes it");
    }
    std::fs::write(&file, text).expect("written");
    let path = file.to_str().expect("a readable path");
    let refused = LINES / BROKEN;
    let good = LINES - refused;

    let (code, counts) = here.json(Binary::Producer, &["import", TOPIC, path]).await;
    assert_eq!(code, 1, "{counts}");
    for (name, count) in [
        ("lines", LINES),
        ("accepted", good),
        ("duplicates", 0),
        ("refused", refused),
    ] {
        assert_eq!(counts[name], count, "{name} in {counts}");
    }
    let kept = counts["refused_file"].as_str().unwrap_or_default();
    assert_eq!(kept, format!("{path}.refused.ndjson"));
    let kept = std::fs::read_to_string(kept).expect("the file of refused lines");
    let kept: Vec<Value> = kept
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    let numbers: Vec<u64> = kept
        .iter()
        .filter_map(|line| line["line"].as_u64())
        .collect();
    let expected: Vec<u64> = (1..=refused).map(|n| (n * BROKEN) as u64).collect();
    assert_eq!(numbers, expected);
    for line in &kept {
        assert_eq!(line["error"]["code"], "invalid", "{line}");
        assert!(
            line["text"]
                .as_str()
                .is_some_and(|text| text.starts_with('{')),
            "{line}"
        );
    }

    let before = here.snapshot().await;
    let (code, again) = here.json(Binary::Producer, &["import", TOPIC, path]).await;
    assert_eq!(code, 1, "{again}");
    for (name, count) in [("accepted", 0), ("duplicates", good), ("refused", refused)] {
        assert_eq!(again[name], count, "{name} in {again}");
    }
    let after = here.snapshot().await;
    for key in ["waiting", "payload"] {
        let key = format!("v1:{{{TOPIC}:0}}:{key}");
        assert!(before.get(&key) == after.get(&key), "{key} changed");
    }
    let stats = here.stats().await;
    assert_eq!(
        Deployment::count(&stats, "waiting"),
        good as u64,
        "{stats:#}"
    );
    here.conserved().await;
}
