//! The words of the pages, and the keys.

use lisa_service::http::auth::Scope;
use maud::html;

use super::page::{Page, Section};
use super::parts::state;

const WORDS: [(&str, &str); 7] = [
    ("waiting", "Stored, not yet due; shared by the groups."),
    (
        "backlog",
        "Due, but held back in its group by the window, its priority, a rate limit or a pause.",
    ),
    (
        "parked",
        "Due, but behind an earlier message of its ordering key.",
    ),
    (
        "ready",
        "On the group's stream, not yet read by a consumer.",
    ),
    (
        "in_flight",
        "Read by a consumer, whose lease (visibility timeout) is running.",
    ),
    (
        "retry",
        "Failed, timed out or deferred; waiting for its next attempt.",
    ),
    (
        "garbage",
        "No longer delivered, and kept for inspection (dead letters).",
    ),
];

const KEYS: [(&str, &str); 9] = [
    ("/", "Find a topic, a message or an ordering key"),
    (
        "g then o, f, g, s, w, y, t, h",
        "Overview, Forecast, Garbage, Schedules, Workers, System, Tokens, Help",
    ),
    ("j and k", "Next and previous row"),
    ("Enter", "Open the row"),
    (
        "← → Home End",
        "In a chart that has the focus (Tab): the values of another step",
    ),
    ("r", "Stop or resume refreshing"),
    ("t", "Change the theme"),
    ("?", "Show this page"),
    ("Keys: off, in the footer", "Turn them all off"),
];

/// Returns the permissions of a scope.
pub(super) const fn meaning(scope: Scope) -> &'static str {
    match scope {
        Scope::Send => "Send, cancel, reschedule, deliver now.",
        Scope::Read => {
            "Read statistics, topics, messages and schedules; log in here, and see the pages."
        }
        Scope::Operate => {
            "Pause, resume, drain, drop, keep, requeue, purge, remove, examine, repair, run jobs, stop garbage jobs, create and edit topics and schedules."
        }
        Scope::Receive => "Pull messages from a gateway.",
        Scope::Payload => "See payloads and headers in the dashboard.",
        Scope::Tokens => {
            "Create, change, rotate and remove tokens with any scopes: the scope of administrators."
        }
    }
}

pub(super) async fn show() -> Page {
    let body = html! {
        section aria-labelledby="states-title" { h2 #states-title { "States of a message" }
            dl.pairs.wide { @for (name, meaning) in WORDS { div { dt { (state(name)) } dd { (meaning) } } } }
        }
        section aria-labelledby="keys-title" { h2 #keys-title { "Keys" }
            dl.pairs.wide { @for (key, meaning) in KEYS { div { dt { kbd { (key) } } dd { (meaning) } } } }
        }
        section aria-labelledby="scopes-title" { h2 #scopes-title { "Scopes of tokens" }
            dl.pairs.wide {
                @for scope in Scope::ALL { div { dt { code { (scope) } } dd { (meaning(*scope)) } } }
            }
        }
    };
    Page::new(Section::Help, "Help", body)
}
