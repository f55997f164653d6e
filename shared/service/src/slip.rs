//! Finds the name that was probably meant by a misspelled one.

/// The maximum number of edits between a misspelling and the intended name: insertions, deletions, substitutions and swaps.
const MOST_CHANGES: usize = 2;
/// The maximum length of a part of a name that is only a mark, as in `orders-eu` and `orders-us`.
const MARK: usize = 3;

/// Returns the name that is closest to `given`, if `given` looks like a misspelling of it.
pub fn meant<'n>(given: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let names = names.into_iter().filter(|name| !are_siblings(given, name));
    let by_changes = names.map(|name| (strsim::damerau_levenshtein(given, name), name));
    let (changes, name) = by_changes.min()?;
    let longest = given.chars().count().max(name.chars().count());
    (changes <= MOST_CHANGES && changes * 3 <= longest).then_some(name)
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
}
