//! Classifies the answer of a webhook.

use std::time::{Duration, SystemTime};

use httpdate::parse_http_date;
use hyper::StatusCode;
use hyper::header::{DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use lisa_consumer_core::internals::SHORTEST_COMPLETION as SHORTEST_LATER;
use lisa_consumer_core::target::Answer;
use lisa_consumer_core::{MAX_RUN, Outcome};
use lisa_core::time::parse_duration;
use lisa_service::targets::RetryAfter;

use crate::printable;

/// The response header with which a server rejects a message: `Lisa-Outcome: reject`.
const OUTCOME: &str = "lisa-outcome";

/// The response header with which a server takes a delivery that it completes later: `Lisa-Complete-Later: 30m`.
const COMPLETE_LATER: &str = "lisa-complete-later";

/// The longest wait that a server may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The number of characters of the body that an error contains.
const SHOWN: usize = 256;

/// The settings that decide what an answer means.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// The outcome of an answer with a wait that the server requests.
    pub(super) retry_after: RetryAfter,
    /// True if the server can complete a delivery later.
    pub(super) can_be_later: bool,
}

/// Classifies an answer by its status and the headers [`OUTCOME`] and [`COMPLETE_LATER`]; the body only explains an error. `now`
/// is the time of the answer, for servers that do not send a date.
pub(super) fn answer(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    now: SystemTime,
    rules: Rules,
) -> Answer {
    if status.is_success() {
        return match headers.get(COMPLETE_LATER) {
            None => Answer::Accepted,
            Some(time) => later(time, rules.can_be_later),
        };
    }
    let mut error = format!("the server answered {status}");
    if status.is_redirection() {
        error.push_str(" and redirects are not followed");
    }
    let body = printable(body, SHOWN);
    if !body.is_empty() {
        error.push_str(": ");
        error.push_str(&body);
    }
    if headers
        .get(OUTCOME)
        .is_some_and(|outcome| outcome == "reject")
    {
        return Answer::Refused(Outcome::reject(error));
    }
    match status {
        StatusCode::GONE => Answer::Gone(error),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::BAD_GATEWAY
        | StatusCode::GATEWAY_TIMEOUT => {
            Answer::Overloaded(match (retry_after(headers, now), rules.retry_after) {
                (Some(wait), RetryAfter::Defer) => Outcome::defer(wait),
                (after, RetryAfter::Defer | RetryAfter::Retry) => Outcome::Retry { after, error },
            })
        }
        status if status.is_server_error() => Answer::Failed(Outcome::retry(error)),
        _ => Answer::Refused(Outcome::retry(error)),
    }
}

/// Reads the time in which a server completes a delivery. A server that asks for what cannot be is not finished, so this is
/// no ack.
fn later(time: &HeaderValue, can_be_later: bool) -> Answer {
    let refused =
        |why: String| Answer::Refused(Outcome::retry(format!("Lisa-Complete-Later: {why}")));
    if !can_be_later {
        return refused("the sink has no complete_url".to_owned());
    }
    let text = printable(time.as_bytes(), SHOWN);
    match parse_duration(&text) {
        Ok(within) if (SHORTEST_LATER..=MAX_RUN).contains(&within) => Answer::Later(within),
        _ => refused(format!("{text:?} is not a time from 1s to 7d")),
    }
}

/// Returns the wait that the server requests, in seconds or as a date, which is compared with the server's own date. Returns
/// `None` for a wait of zero, so that the topic's policy applies.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = text(headers, RETRY_AFTER)?;
    let wait = if text.bytes().all(|b| b.is_ascii_digit()) {
        // A number that does not fit is a very long wait.
        text.parse().map_or(LONGEST_WAIT, Duration::from_secs)
    } else {
        let at = parse_http_date(text).ok()?;
        let now = text_date(headers).unwrap_or(now);
        at.duration_since(now).ok()?
    };
    (!wait.is_zero()).then(|| wait.min(LONGEST_WAIT))
}

fn text_date(headers: &HeaderMap) -> Option<SystemTime> {
    parse_http_date(text(headers, DATE)?).ok()
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn ended(status: u16, headers: &[(HeaderName, &str)], body: &[u8]) -> Outcome {
        ended_as(status, headers, body, RetryAfter::Retry)
    }

    fn ended_as(
        status: u16,
        headers: &[(HeaderName, &str)],
        body: &[u8],
        retry_after: RetryAfter,
    ) -> Outcome {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect();
        let now = parse_http_date(DUE).unwrap() - Duration::from_secs(60);
        let status = StatusCode::from_u16(status).unwrap();
        let rules = Rules {
            retry_after,
            can_be_later: true,
        };
        match answer(status, &headers, body, now, rules) {
            Answer::Accepted => Outcome::Ack,
            Answer::Later(within) => Outcome::Later { within },
            Answer::Refused(outcome) | Answer::Failed(outcome) | Answer::Overloaded(outcome) => {
                outcome
            }
            other => panic!("{other:?}"),
        }
    }

    fn wait(status: u16, headers: &[(HeaderName, &str)]) -> Option<u64> {
        match ended(status, headers, b"") {
            Outcome::Retry { after, .. } => after.map(|after| after.as_secs()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_status_decides() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(ended(status, &[], b"whatever"), Outcome::Ack);
        }
        let status = StatusCode::GONE;
        assert_eq!(
            answer(
                status,
                &HeaderMap::new(),
                b"moved out",
                SystemTime::UNIX_EPOCH,
                Rules {
                    retry_after: RetryAfter::Retry,
                    can_be_later: false
                }
            ),
            Answer::Gone("the server answered 410 Gone: moved out".to_owned())
        );
        for status in [
            304, 400, 401, 404, 408, 409, 422, 429, 500, 502, 503, 504, 599,
        ] {
            assert_eq!(wait(status, &[]), None, "{status}");
        }
        assert_eq!(
            ended(302, &[], b""),
            Outcome::retry("the server answered 302 Found and redirects are not followed")
        );
    }

    #[test]
    fn a_server_may_complete_a_delivery_later_and_nonsense_is_no_ack() {
        let name = HeaderName::from_static(COMPLETE_LATER);
        let later = |time| ended(202, &[(name.clone(), time)], b"");
        for (time, seconds) in [("1s", 1), ("30m", 1800), ("7d", 7 * 24 * 3600)] {
            let within = Duration::from_secs(seconds);
            assert_eq!(later(time), Outcome::Later { within }, "{time}");
        }
        for time in ["", "0s", "999ms", "8d", "30", "soon", "-1s", "\u{7f}"] {
            let Ok(value) = HeaderValue::from_str(time) else {
                continue;
            };
            let Answer::Refused(Outcome::Retry { error, .. }) = super::later(&value, true) else {
                panic!("{time} was taken");
            };
            assert!(error.ends_with("is not a time from 1s to 7d"), "{error}");
        }
        let refused = super::later(&HeaderValue::from_static("30m"), false);
        let error = "Lisa-Complete-Later: the sink has no complete_url";
        assert_eq!(refused, Answer::Refused(Outcome::retry(error)));
        let failed = ended(503, &[(name, "30m")], b"");
        assert!(matches!(failed, Outcome::Retry { .. }), "only a success");
    }

    #[test]
    fn an_error_shows_the_start_of_the_body_on_one_line() {
        let body = format!("\x1b[2Jno\r\n{}", "ä".repeat(1000));
        let Outcome::Retry { error, .. } = ended(500, &[], body.as_bytes()) else {
            panic!("not a retry");
        };
        let shown = error.strip_prefix("the server answered 500 Internal Server Error: ");
        let shown = shown.expect("the status first");
        assert!(shown.starts_with("[2Jno  ää"), "{shown}");
        assert_eq!(
            shown.chars().count(),
            SHOWN - 1,
            "without the leading control"
        );
    }

    #[test]
    fn a_server_under_load_says_how_long_to_wait_in_all_forms() {
        for status in [429, 502, 503, 504] {
            assert_eq!(wait(status, &[(RETRY_AFTER, "7")]), Some(7), "{status}");
        }
        for date in [
            DUE,
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(wait(503, &[(RETRY_AFTER, date)]), Some(60), "{date}");
        }
        let own_date = [(RETRY_AFTER, DUE), (DATE, "Sun, 06 Nov 1994 08:49:27 GMT")];
        assert_eq!(wait(503, &own_date), Some(10));
    }

    #[test]
    fn a_wait_can_be_a_defer_and_without_one_the_attempt_failed() {
        let deferred = |status, wait| {
            let headers = [(RETRY_AFTER, wait)];
            ended_as(status, &headers, b"busy", RetryAfter::Defer)
        };
        for status in [429, 502, 503, 504] {
            assert_eq!(
                deferred(status, "7"),
                Outcome::defer(Duration::from_secs(7))
            );
        }
        assert_eq!(deferred(429, "3601"), Outcome::defer(LONGEST_WAIT));
        for (status, wait) in [(429, "0"), (503, "soon"), (500, "7")] {
            let failed = matches!(deferred(status, wait), Outcome::Retry { after: None, .. });
            assert!(failed, "{status} {wait}");
        }
    }

    #[test]
    fn a_wait_is_capped_and_nonsense_leaves_it_to_the_policy() {
        for long in [
            "3601",
            "99999999999999999999999",
            "Sat, 06 Nov 2094 08:49:37 GMT",
        ] {
            assert_eq!(wait(429, &[(RETRY_AFTER, long)]), Some(3600), "{long}");
        }
        for nothing in [
            "0",
            "-5",
            "1.5",
            "soon",
            "",
            DUE,
            "Mon, 99 Nov 1994 08:49:37 GMT",
        ] {
            let headers = [(RETRY_AFTER, nothing), (DATE, DUE)];
            assert_eq!(wait(429, &headers), None, "{nothing}");
        }
        assert_eq!(wait(500, &[(RETRY_AFTER, "7")]), None);
    }
}
