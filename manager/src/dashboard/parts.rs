//! The pieces that pages are made of: figures, times, states, buttons, commands that can be copied.

use std::fmt::Display;

use lisa_core::state::State;
use lisa_core::time::UnixMs;
use lisa_core::topic::Group;
use lisa_service::http::auth::Scope;
use maud::{Markup, html};

use super::cache::Reading;
use super::page::Context;
use super::text::{counted, grouped, part, shell, span, visible, visible_lines};
use crate::operations::attention::Status;
use crate::operations::garbage::Verb;
use crate::operations::rates::Rate;
use crate::operations::topics::Missing;

/// Returns a date and time in UTC, which the script replaces by the viewer's.
pub(super) fn exact(at: UnixMs) -> Markup {
    let text = at.to_string();
    let shown = text.replace('T', " ").replace('Z', " UTC");
    html! { time datetime=(text) data-show="exact" { (shown) } }
}

/// Returns a time relative to now, with the exact one on hover.
pub(super) fn relative(at: UnixMs, now: UnixMs) -> Markup {
    let text = at.to_string();
    let title = text.replace('T', " ").replace('Z', " UTC");
    let (at, now) = (at.get(), now.get());
    let shown = match at.abs_diff(now) {
        0..=999 => "now".to_owned(),
        ms if at > now => format!("in {}", span(ms)),
        ms => format!("{} ago", span(ms)),
    };
    html! { time datetime=(text) title=(title) data-show="title" { (shown) } }
}

/// Returns the date and time of text in RFC 3339; the text itself if it is something else.
pub(super) fn exact_text(at: &str) -> Markup {
    match at.parse::<UnixMs>() {
        Ok(at) => exact(at),
        Err(_) => html! { (at) },
    }
}

/// Returns a relative time of text in RFC 3339; the text itself if it is something else.
pub(super) fn relative_text(at: &str, now: UnixMs) -> Markup {
    match at.parse::<UnixMs>() {
        Ok(at) => relative(at, now),
        Err(_) => html! { (at) },
    }
}

/// Returns a count; zero is shown faintly, so that others stand out.
pub(super) fn count(number: u64) -> Markup {
    html! { @if number == 0 { span.zero { "0" } } @else { (grouped(number)) } }
}

/// Returns a count that leads to what was counted.
pub(super) fn count_link(number: u64, href: &str) -> Markup {
    html! { @if number == 0 { span.zero { "0" } } @else { a href=(href) { (grouped(number)) } } }
}

/// The weight of something to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Bad,
    Warn,
    Note,
    Ok,
    Unknown,
}

impl From<Status> for Level {
    fn from(status: Status) -> Self {
        match status {
            Status::Ok => Self::Ok,
            Status::Notice => Self::Note,
            Status::Warning => Self::Warn,
            Status::Unknown => Self::Unknown,
            Status::Critical => Self::Bad,
        }
    }
}

impl Level {
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Ok => "is-ok",
            Self::Warn => "is-warn",
            Self::Bad => "is-bad",
            Self::Note | Self::Unknown => "is-unknown",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warn => "Warning",
            Self::Note => "Note",
            Self::Bad => "Problem",
            Self::Unknown => "Unknown",
        }
    }
}

/// Returns the shape of a level, with its word for screen readers.
pub(super) fn sign(level: Level) -> Markup {
    html! {
        svg.sign.(level.class()) viewBox="0 0 16 16" width="16" height="16" role="img" aria-label=(level.word()) {
            @match level {
                Level::Ok => { circle cx="8" cy="8" r="7" class="fill" {} path d="M4.800 8.200l2.200 2.200 4.200-4.600" class="cut" {} }
                Level::Warn => { path d="M8 1.500 15.200 14.500H.800Z" class="fill" {} path d="M8 6v4M8 12.200v.400" class="cut" {} }
                Level::Bad => { rect x="1" y="1" width="14" height="14" rx="2" class="fill" {} path d="M5 5l6 6M11 5l-6 6" class="cut" {} }
                Level::Note => { circle cx="8" cy="8" r="6.500" class="ring" {} path d="M8 5v.400M8 7.500v3.500" class="line" {} }
                Level::Unknown => { circle cx="8" cy="8" r="6.500" class="ring" {} path d="M8 5v3.500M8 11v.400" class="line" {} }
            }
        }
    }
}

/// Returns a state by shape and word. Also takes `done` and `unknown`.
pub(super) fn state(name: &str) -> Markup {
    let word = name.replace('_', " ");
    html! {
        span.state.(format!("state-{name}")) {
            svg viewBox="0 0 12 12" width="11" height="11" aria-hidden="true" {
                @match name {
                    "waiting" => { circle cx="6" cy="6" r="4.500" class="ring" {} path d="M6 3.500V6l1.800 1.200" class="line" {} }
                    "backlog" => { path d="M1.500 3h9M1.500 6h9M1.500 9h9" class="line" {} }
                    "parked" => { path d="M4 2v8M8 2v8" class="line" {} }
                    "ready" => { circle cx="6" cy="6" r="4" class="fill" {} }
                    "in_flight" => { path d="M2.500 1.500 10.500 6l-8 4.500Z" class="fill" {} }
                    "retry" => { path d="M9.800 6.500A4 4 0 1 1 8.500 3M8.700.800v2.500H6.200" class="line" {} }
                    "garbage" => { rect x="1.500" y="1.500" width="9" height="9" rx="1" class="fill" {} }
                    "done" => { path d="M2 6.200l2.800 2.800L10 3.500" class="line" {} }
                    _ => { circle cx="6" cy="6" r="4" class="ring" {} }
                }
            }
            (word)
        }
    }
}

/// Returns a line that says that all messages are accounted for, and how many of them were lost.
pub(super) fn accounted_for(lost: u64) -> Markup {
    html! {
        @if lost == 0 { (sign(Level::Ok)) span { "All messages accounted for" } }
        @else { (sign(Level::Note)) span title="Messages whose records were gone, since the topics were declared. A lower bound if groups lost different messages" { "All messages accounted for, " (counted(lost, "lost message")) } }
    }
}

/// Returns one figure with its name.
pub(super) fn tile(label: &str, value: Markup, note: Markup) -> Markup {
    html! { div.tile { dt { (label) } dd { span.value { (value) } span.note { (note) } } } }
}

/// Returns a rate per second; a faint dash until it is known.
pub(super) fn per_second(rate: Option<f64>) -> Markup {
    html! { @match rate {
        None => { span.zero title="Known after two counts, within seconds" { "–" } }
        Some(rate) if rate == 0.0 => { span.zero { "0" } }
        Some(rate) => { (rate_text(rate)) }
    } }
}

/// Returns the text of a rate that is not zero, with two or more digits.
fn rate_text(rate: f64) -> String {
    match rate {
        ..0.1 => "< 0.1".to_owned(),
        0.1..9.95 => format!("{rate:.1}"),
        _ => grouped(rate.round() as u64),
    }
}

/// Returns the figures of the present rates. What is sent counts once, and what is delivered once for each group.
pub(super) fn rate_tiles(rate: Option<Rate>) -> Markup {
    let of = |of: fn(Rate) -> f64| html! { (per_second(rate.map(of))) };
    html! {
        (tile("Sent/s", of(|rate| rate.sent), html! { "messages" }))
        (tile("Acked/s", of(|rate| rate.acked), html! { "in all groups" }))
        (tile("Failed/s", of(|rate| rate.failed), html! { "in all groups" }))
    }
}

/// Returns a short mark of something special.
pub(super) fn tag(level: Level, text: impl Display) -> Markup {
    html! { span.tag.(level.class()) { (text.to_string()) } }
}

/// Returns a line that says how old the figures are, or that there are none, if Redis did not answer. Its element is always on
/// the page, so that a refresh can show the line.
pub(super) fn staleness<T>(id: &str, reading: &Reading<T>) -> Markup {
    html! { div id=(id) data-live {
        @if let Some(error) = &reading.error { p.stale {
            (sign(Level::Bad))
            @match reading.value {
                Some(_) => { span { "These figures are " strong { (span(lisa_core::time::millis(reading.age))) " old" } ": " (visible(error.trim_end_matches('.'))) "." } }
                None => { span { "There are no figures: " (visible(error.trim_end_matches('.'))) "." } }
            }
        } }
    } }
}

/// Names the topics that could not be read.
pub(super) fn missing_topics(context: &Context, missing: Option<&Missing>) -> Markup {
    let missing = missing.filter(|missing| !missing.is_empty());
    html! { div #missing data-live { @if let Some(missing) = missing { ul.list aria-label="Topics that cannot be read" {
        @for topic in &missing.damaged { li {
            (sign(Level::Bad)) a href=(context.link(format!("/topics/{}/doctor", part(&topic.topic)))) { (visible(&topic.topic)) }
            span { "cannot be read: " (visible(&topic.error)) }
        } }
        @for topic in &missing.unanswered { li {
            (sign(Level::Warn)) a href=(context.link(format!("/topics/{topic}"))) { (topic) } span { "Redis did not answer for this topic" }
        } }
    } } } }
}

/// A button that posts, for an action that can be undone.
pub(super) fn post_button(
    context: &Context,
    scope: Scope,
    label: &str,
    path: impl Display,
) -> Markup {
    html! {
        @if context.viewer.can(scope) {
            form.inline method="post" action=(context.link(path)) { button { (label) } }
        } @else { (locked(label, scope)) }
    }
}

/// A link to the page that asks for confirmation.
pub(super) fn confirm_link(
    context: &Context,
    scope: Scope,
    label: &str,
    path: impl Display,
    is_danger: bool,
) -> Markup {
    html! {
        @if context.viewer.can(scope) {
            a.button.(if is_danger { "danger" } else { "plain" }) href=(context.link(path)) { (label) "…" }
        } @else { (locked(label, scope)) }
    }
}

/// A button that this viewer may not press, with the scope it needs.
pub(super) fn locked(label: &str, scope: Scope) -> Markup {
    html! { button.locked type="button" disabled title=(format!("Requires the scope {scope}")) { (label) " " small { "requires " (scope.as_str()) } } }
}

/// Commands that do the same as an action, to be copied.
#[derive(Clone, Debug, Default)]
pub(super) struct Commands(Vec<(String, &'static str, String)>);

impl Commands {
    /// Adds an HTTP request, with a body of JSON if there is one.
    pub(super) fn curl(
        self,
        context: &Context,
        what: &str,
        method: &str,
        path: impl Display,
        json: Option<&str>,
    ) -> Self {
        let url = format!("{}{path}", context.api);
        self.request(context, what, method, &url, json)
    }

    /// Adds a request to the producer's HTTP interface.
    pub(super) fn curl_producer(
        self,
        context: &Context,
        what: &str,
        method: &str,
        path: impl Display,
        json: Option<&str>,
    ) -> Self {
        let url = format!("{}{path}", context.producer);
        self.request(context, what, method, &url, json)
    }

    /// Adds a send over HTTP, with these headers.
    pub(super) fn curl_send(
        mut self,
        context: &Context,
        what: &str,
        path: impl Display,
        headers: &[(String, String)],
        payload: &str,
    ) -> Self {
        let mut line = "curl -sS -X POST".to_owned();
        line += authorization(context);
        // Without it, curl sends a type of its own, which the message would keep.
        let is_typed = headers.iter().any(|(name, _)| name == "content-type");
        if !is_typed {
            line += " -H Content-Type:";
        }
        for (name, value) in headers {
            line += &format!(" -H {}", shell(&format!("{name}: {value}")));
        }
        let url = format!("{}{path}", context.producer);
        line += &format!(" --data-raw {} {}", shell(payload), shell(&url));
        self.0.push((what.to_owned(), "curl", line));
        self
    }

    /// Adds the requests that reschedule a message, with a delay as an example.
    pub(super) fn reschedule(self, context: &Context, topic: &str, id: &str) -> Self {
        let path = format!("/v1/topics/{topic}/messages/{}", part(id));
        let (what, json) = ("Reschedule", r#"{"delay":"15m"}"#);
        self.curl_producer(context, what, "PATCH", path, Some(json))
            .cli(
                context,
                what,
                "lisa-producer",
                &["reschedule", topic, "--delay", "15m", "--", id],
            )
    }

    /// Adds the requests that requeue or purge a message of a group's garbage.
    pub(super) fn of_garbage(
        self,
        context: &Context,
        verb: Verb,
        topic: &str,
        group: &Group,
        id: &str,
    ) -> Self {
        let (verb, group) = (verb.as_str(), group.as_str());
        let what = match verb {
            "purge" => format!("Purge from {group}"),
            _ => format!("Requeue for {group}"),
        };
        let json = serde_json::json!({ "ids": [id] }).to_string();
        let path = format!("/v1/topics/{topic}/groups/{group}/garbage/{verb}");
        let words = ["garbage", verb, topic, "--group", group, "--", id];
        self.curl(context, &what, "POST", path, Some(&json)).cli(
            context,
            &what,
            "lisa-manager",
            &words,
        )
    }

    fn request(
        mut self,
        context: &Context,
        what: &str,
        method: &str,
        url: &str,
        json: Option<&str>,
    ) -> Self {
        let mut line = "curl -sS".to_owned();
        if method != "GET" {
            line += &format!(" -X {method}");
        }
        line += authorization(context);
        if let Some(json) = json {
            line += &format!(" -H 'Content-Type: application/json' -d {}", shell(json));
        }
        line += &format!(" {}", shell(url));
        self.0.push((what.to_owned(), "curl", line));
        self
    }

    /// Adds a command of `program`, whose words are quoted for the shell.
    pub(super) fn cli(
        mut self,
        context: &Context,
        what: &str,
        program: &str,
        words: &[&str],
    ) -> Self {
        let line = command_line(context, program, words);
        self.0.push((what.to_owned(), "command", line));
        self
    }

    /// Returns the list, closed at first.
    pub(super) fn render(&self, id: &str) -> Markup {
        html! {
            details.commands id=(id) {
                summary { "Copy as curl or command" }
                @for (what, kind, line) in &self.0 {
                    div.command {
                        span.what { (what) " " span.kind { (kind) } }
                        pre tabindex="0" { code { (visible_lines(line)) } }
                        button.copy.quiet type="button" data-copy=(line) { "Copy" }
                    }
                }
            }
        }
    }
}

/// Returns a line with the number of things that a list leaves out.
pub(super) fn rest(all: usize, shown: usize) -> Markup {
    html! { @if all > shown { p.muted { "and " (grouped((all - shown) as u64)) " more" } } }
}

/// Returns a line with the number of things that a list leaves out. It links to all of them.
pub(super) fn rest_at(all: usize, shown: usize, href: &str) -> Markup {
    html! { @if all > shown { p.muted { a href=(href) { "and " (grouped((all - shown) as u64)) " more" } } } }
}

/// Returns an empty place, with what to do next.
pub(super) fn empty(title: &str, advice: Markup) -> Markup {
    html! {
        div.empty {
            svg viewBox="0 0 48 48" width="44" height="44" aria-hidden="true" { circle cx="24" cy="24" r="19" class="ring" {} path d="M24 13v11l7 5" class="line" {} }
            p.lead { (title) }
            div { (advice) }
        }
    }
}

/// Returns the option of curl with the token, with a space in front; empty if this relay has no tokens.
pub(super) fn authorization(context: &Context) -> &'static str {
    match context.viewer.name() {
        Some(_) => " -H \"Authorization: Bearer $LISA_TOKEN\"",
        None => "",
    }
}

/// Returns a command of `program`, whose words are quoted for the shell, and names what it works on. Commands of `lisa-manager`
/// work through this manager if the page knows its URL; all others use the manager's Redis.
pub(super) fn command_line(context: &Context, program: &str, words: &[&str]) -> String {
    let mut line = program.to_owned();
    match &context.url {
        Some(url) if program == "lisa-manager" => line += &format!(" --url {}", shell(url)),
        _ => {
            if let Some(redis) = &context.redis {
                line += &format!(" --redis-url {}", shell(redis));
            }
            if &*context.namespace != "lisa" {
                line += &format!(" --namespace {}", shell(&context.namespace));
            }
        }
    }
    for word in words {
        line.push(' ');
        line += &shell(word);
    }
    line
}

/// Returns a command in a box with a button to copy it.
pub(super) fn command(line: &str) -> Markup {
    html! { div.command.alone { pre tabindex="0" { code { (visible_lines(line)) } } button.copy.quiet type="button" data-copy=(line) { "Copy" } } }
}

/// The most that a part of a bar chart can be.
const CHART: u64 = 1000;

/// Returns a bar that shows a share of a limit.
pub(super) fn meter(value: u64, limit: u64, label: &str) -> Markup {
    let share = value.saturating_mul(CHART) / limit.max(1);
    let class = match share {
        0..=749 => "is-ok",
        750..=899 => "is-warn",
        _ => "is-bad",
    };
    html! {
        svg.meter.(class) viewBox="0 0 1000 60" preserveAspectRatio="none" role="img" aria-label=(format!("{label}: {}.{} % of the limit", share / 10, share % 10)) {
            rect width="1000" height="60" class="track" {}
            rect width=(share.min(CHART)) height="60" class="bar" {}
        }
    }
}

/// The states of one group, in the order of a message's life.
pub(super) const GROUP_STATES: [State; 6] = [
    State::Backlog,
    State::Parked,
    State::Ready,
    State::InFlight,
    State::Retry,
    State::Garbage,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_as_many_digits_as_people_read() {
        let texts = [0.01, 0.14, 9.94, 9.96, 120.4, 12_345.6].map(rate_text);
        assert_eq!(texts, ["< 0.1", "0.1", "9.9", "10", "120", "12,346"]);
        assert!(per_second(None).into_string().contains('–'));
        assert!(per_second(Some(0.0)).into_string().contains(">0<"));
    }

    #[test]
    fn times_are_relative_to_the_clock_of_redis_and_never_negative() {
        let now = UnixMs::new(1_000_000);
        let text = |at: u64| relative(UnixMs::new(at), now).into_string();
        assert!(text(1_042_000).contains(">in 42 s<"));
        assert!(text(995_000).contains(">5 s ago<"));
        assert!(text(1_000_400).contains(">now<"));
        assert!(text(42_000).contains("datetime=\"1970-01-01T00:00:42.000Z\""));
        assert_eq!(relative_text("<b>", now).into_string(), "&lt;b&gt;");
    }
}
