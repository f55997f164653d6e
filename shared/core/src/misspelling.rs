//! Finds the name that was probably meant by a misspelled one.

/// The maximum number of edits between a misspelling and the intended name: insertions, deletions, substitutions and swaps.
const MOST_CHANGES: usize = 2;
/// The maximum length of a part of a name that is only a mark, as in `orders-eu` and `orders-us`.
const MARK: usize = 3;

/// The maximum length of a name that is compared, in bytes; topics and groups are shorter.
const MAX_LENGTH: usize = 64;
/// The maximum number of names of about the same length that are compared.
const MAX_NAMES: usize = 500;

/// Names of message options in responses and in other queues, with the names that a request has for them.
const OTHER_NAMES: [(&str, &str); 8] = [
    ("body", "payload"),
    ("deduplication_id", "id"),
    ("delay_seconds", "delay"),
    ("due_at", "deliver_at"),
    ("group_id", "key"),
    ("idempotency_key", "id"),
    ("message_id", "id"),
    ("ordering_key", "key"),
];

/// Returns the name that is closest to `given`, if `given` looks like a misspelling of it.
///
/// The cost is bounded: names longer than 64 bytes have no suggestion, and of the names that are about as long as `given`
/// only the first 500 are compared.
pub fn meant<'n>(given: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    if given.len() > MAX_LENGTH {
        return None;
    }
    let length = given.chars().count();
    let is_as_long = |name: &&str| {
        name.len() <= MAX_LENGTH && name.chars().count().abs_diff(length) <= MOST_CHANGES
    };
    let names = names.into_iter().filter(is_as_long).take(MAX_NAMES);
    let names = names.filter(|name| !are_siblings(given, name));
    let by_changes = names.map(|name| (strsim::damerau_levenshtein(given, name), name));
    let (changes, name) = by_changes.min()?;
    let longest = given.chars().count().max(name.chars().count());
    (changes <= MOST_CHANGES && changes * 3 <= longest).then_some(name)
}

/// Returns the message option that was probably meant: by a name that it has elsewhere, or by a misspelled one.
pub fn meant_option<'n>(given: &str, names: &[&'n str]) -> Option<&'n str> {
    let elsewhere = OTHER_NAMES.iter().find(|(other, _)| *other == given);
    // The same name may have been spelled in another way, as `Lisa-Max_Attempts`.
    let ours = elsewhere.map_or(given, |(_, ours)| ours);
    let same = names.iter().find(|name| **name == ours).copied();
    same.or_else(|| meant(given, names.iter().copied()))
}

/// Returns `; did you mean "orders"?`, to be appended to an error about an unknown name, or nothing if no name is similar.
pub fn suggestion<'n>(unknown: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    meant(unknown, names).map_or(String::new(), |meant| format!("; did you mean {meant:?}?"))
}

/// Returns true if the names differ only in short marks and numbers, so that both may exist.
fn are_siblings(one: &str, other: &str) -> bool {
    let parts = |name: &str| -> Vec<String> {
        let digits_alike = name.split(['-', '_', '.']);
        digits_alike.map(str::to_owned).collect()
    };
    let is_mark = |part: &str| part.len() <= MARK;
    let without_digits = |part: &str| {
        part.trim_end_matches(|c: char| c.is_ascii_digit())
            .to_owned()
    };
    let (one, other) = (parts(one), parts(other));
    one.len() == other.len()
        && one.iter().zip(&other).all(|(a, b)| {
            a == b
                || (one.len() > 1 && is_mark(a) && is_mark(b))
                || (a.len() == b.len() && without_digits(a) == without_digits(b))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_is_answered_with_the_nearest_one() {
        let suggestion = |name: &str| suggestion(name, ["orders", "billing"]);
        assert_eq!(suggestion("order"), "; did you mean \"orders\"?");
        assert_eq!(suggestion("reminders"), "");
    }

    #[test]
    fn a_misspelling_is_distinguished_from_another_name() {
        let names = ["orders", "orders-eu", "billing", "shard1"];
        for (given, name) in [
            ("order", Some("orders")),
            ("oders", Some("orders")),
            ("ordres", Some("orders")),
            ("orderz-eu", Some("orders-eu")),
            ("biling", Some("billing")),
            ("orders-us", None),
            ("shard2", None),
            ("reminders", None),
            ("bil", None),
            ("", None),
        ] {
            assert_eq!(meant(given, names), name, "{given}");
        }
        assert_eq!(meant("a", ["b"]), None);
        assert_eq!(meant("leese", ["lease", "shards"]), Some("lease"));
    }

    #[test]
    fn an_option_is_also_found_by_the_name_that_it_has_elsewhere() {
        let names = ["deliver_at", "delay", "key"];
        for (given, name) in [
            ("due_at", Some("deliver_at")),
            ("dealy", Some("delay")),
            ("ordering_key", Some("key")),
            ("body", None),
            ("shards", None),
        ] {
            assert_eq!(meant_option(given, &names), name, "{given}");
        }
    }

    #[test]
    fn the_number_and_the_length_of_compared_names_are_bounded() {
        let long = "x".repeat(MAX_LENGTH + 1);
        assert_eq!(meant(&long[1..], [&*long, &long[2..]]), Some(&long[2..]));
        assert_eq!(meant(&long, [&long[1..]]), None);
        // Names of other lengths do not count.
        let others = ["reminders"; 2 * MAX_NAMES];
        let names = |others: &[&'static str]| [others, &["orders"]].concat();
        assert_eq!(meant("order", names(&others)), Some("orders"));
        let others = ["queue"; MAX_NAMES];
        assert_eq!(meant("order", names(&others)), None);
        assert_eq!(meant("order", names(&others[1..])), Some("orders"));
    }
}
