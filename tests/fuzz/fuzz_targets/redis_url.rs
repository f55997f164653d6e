//! Addresses of Redis: their printed form has no password, and can be read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lisa_fuzz::{SECRET, is_bounded, round_trips};
use lisa_core::redis::{Endpoint, RedisUrl};

/// Returns whether the secret stands where a password stands, so that it must not be visible.
fn is_hidden(text: &str) -> bool {
    let after = |text: &str| {
        text.split_once(SECRET)
            .map(|(before, after)| (before.to_owned(), after.to_owned()))
    };
    after(text).is_some_and(|(before, after)| {
        // In the address of a socket, this would be a part of its path.
        let of_user =
            !before.starts_with("unix://") && before.ends_with(':') && after.starts_with('@');
        let of_query = before.starts_with("unix://") && before.ends_with("?pass=");
        !after.contains(SECRET) && (of_user || of_query)
    })
}

fuzz_target!(|text: &str| {
    let text = text.replace('\u{1}', SECRET);
    let hidden = is_hidden(&text);
    match text.parse::<RedisUrl>() {
        Ok(url) => {
            let shown = [
                url.to_string(),
                format!("{url:?}"),
                serde_json::to_string(&url).expect("a text"),
            ];
            if hidden {
                assert!(shown.iter().all(|text| !text.contains(SECRET)), "{shown:?}");
            }
            // A password is lost, with a socket the user too, and what was escaped is not escaped again.
            let lost = url.password().is_some()
                || (url.username().is_some() && matches!(url.endpoint(), Endpoint::Unix(_)));
            if !lost && !text.contains('%') {
                round_trips(&url);
            }
        }
        Err(error) => {
            assert!(!hidden || !error.to_string().contains(SECRET), "{error}");
            is_bounded(error);
        }
    }
});
