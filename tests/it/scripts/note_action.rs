//! note_action: the audit log, in which the actions of one author cannot push out those of another.

use std::collections::BTreeMap;

use lisa_core::broker::{AUDIT_KEPT, AuditEntry};
use lisa_tests::Relay;

async fn act(relay: &Relay, who: &str, count: usize) {
    for number in 0..count {
        let entry = AuditEntry {
            who: who.to_owned(),
            action: number.to_string(),
            ..AuditEntry::default()
        };
        relay.broker().audit(&entry).await.unwrap();
    }
}

/// Returns the number of kept actions of each author, and the oldest and the newest of them.
async fn kept(relay: &Relay) -> BTreeMap<String, (usize, usize, usize)> {
    let (mut kept, mut before) = (BTreeMap::new(), None);
    loop {
        let read = relay.broker().audit_log(before, 300).await.unwrap();
        let Some(last) = read.last() else {
            return kept;
        };
        before = Some(last.position());
        for audited in read {
            let action = audited.entry.action.parse().unwrap();
            let of = kept.entry(audited.entry.who);
            let (count, oldest, _) = of.or_insert((0, action, action));
            (*count, *oldest) = (*count + 1, action);
        }
    }
}

fn of(each: &[(&str, (usize, usize, usize))]) -> BTreeMap<String, (usize, usize, usize)> {
    let each = each.iter();
    each.map(|(who, kept)| ((*who).to_owned(), *kept)).collect()
}

#[tokio::test]
async fn the_oldest_actions_of_the_authors_with_the_most_are_removed() {
    let relay = Relay::start("note_action").await;
    let (all, most) = (AUDIT_KEPT, AUDIT_KEPT + AUDIT_KEPT / 10);
    act(&relay, "ops", 30).await;
    // An author without a name.
    act(&relay, "", 20).await;
    act(&relay, "team", most - 50).await;
    let full = of(&[
        ("", (20, 0, 19)),
        ("ops", (30, 0, 29)),
        ("team", (most - 50, 0, most - 51)),
    ]);
    assert_eq!(kept(&relay).await, full);
    act(&relay, "ops", 1).await;
    let first = most - 50 - (all - 51);
    let shared = of(&[
        ("", (20, 0, 19)),
        ("ops", (31, 0, 0)),
        ("team", (all - 51, first, most - 51)),
    ]);
    assert_eq!(kept(&relay).await, shared);
    // A second author that acts without end shares the log with the first.
    act(&relay, "other", 5 * all).await;
    let kept = kept(&relay).await;
    let [nobody, ops, team, other] = ["", "ops", "team", "other"].map(|who| kept[who]);
    assert_eq!((nobody.0, ops.0), (20, 31));
    assert_eq!(
        team,
        ((all - 51) / 2, most - 50 - (all - 51) / 2, most - 51)
    );
    let share = all - 51 - team.0;
    assert!(
        (share - 1..=share + all / 10).contains(&other.0),
        "{other:?}"
    );
    assert_eq!(other.2, 5 * all - 1);
}
