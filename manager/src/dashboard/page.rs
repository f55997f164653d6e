//! The frame of every page: header, navigation, messages, footer. Also the page of an error.

use std::fmt::Display;
use std::sync::Arc;

use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lisa_core::broker::BrokerError;
use lisa_core::time::UnixMs;
use lisa_service::cron::TimeZone;
use lisa_service::http::auth::Scope;
use lisa_service::http::{Problem, ProblemCode};
use maud::{DOCTYPE, Markup, html};

use super::assets;
use super::routes::is_filtered;
use super::session::Viewer;
use super::text::{part, spelled_out, visible};
use crate::operations::choose_group::GroupError;

/// The longest message that a cookie carries to the next page, in bytes.
const MAX_FLASH: usize = 1000;

/// The choices for the time between two refreshes, in seconds; 0 is never.
pub(super) const LIVE: [u16; 6] = [1, 2, 5, 15, 60, 0];

/// The request as pages need it. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Context {
    /// The path before every link.
    pub(super) base: Arc<str>,
    /// The namespace in Redis.
    pub(super) namespace: Arc<str>,
    pub(super) viewer: Viewer,
    pub(super) choices: Choices,
    /// The path and query of this page, without the base path.
    pub(super) here: Arc<str>,
    /// The start of the URLs of the HTTP interface, for commands that can be copied.
    pub(super) api: Arc<str>,
    /// The same for the producer's routes.
    pub(super) producer: Arc<str>,
    /// The URL of this manager, for commands that work through it; only if the page has the same URL.
    pub(super) url: Option<Arc<str>>,
    /// The address of Redis, for all other commands; only without a user and a password, which each operator configures
    /// for himself, and not for a viewer with limits.
    pub(super) redis: Option<Arc<str>>,
    /// The time on Redis's clock.
    pub(super) now: UnixMs,
    /// The time zone of charts: that of the browser, once its script has named it.
    pub(super) zone: TimeZone,
}

impl Context {
    /// Returns the URL of a page.
    pub(super) fn link(&self, path: impl Display) -> String {
        format!("{}{path}", self.base)
    }

    /// Returns true if a section is linked: one for readers, or for sessions that have its scope, unless it shows what the viewer
    /// does not reach.
    fn is_linked(&self, path: &str, scope: Scope) -> bool {
        let has_scope = self.viewer.name().is_some() && self.viewer.can(scope);
        (scope == Scope::Read || has_scope) && (self.reaches_all_topics() || is_filtered(path))
    }

    /// Returns true if the viewer reaches the topics of all teams.
    pub(super) fn reaches_all_topics(&self) -> bool {
        self.viewer.reach().topics.is_none()
    }

    /// Answers an action: shows a line on the page at `path`.
    pub(super) fn done(&self, path: impl Display, line: impl Display) -> Response {
        self.redirect(path, &format!("+{line}"))
    }

    /// Answers an action that changed nothing, and says why.
    pub(super) fn not_done(&self, path: impl Display, line: impl Display) -> Response {
        self.redirect(path, &format!("-{line}"))
    }

    fn redirect(&self, path: impl Display, line: &str) -> Response {
        let mut end = line.len().min(MAX_FLASH);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        let cookie = format!(
            "lisa-line={}; Path=/; Max-Age=60; HttpOnly; SameSite=Lax",
            part(&line[..end])
        );
        see_other(&self.link(path), Some(&cookie))
    }
}

/// Sends the browser to a page of this dashboard.
pub(super) fn see_other(url: &str, cookie: Option<&str>) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    if let Ok(url) = HeaderValue::from_str(url) {
        headers.insert(LOCATION, url);
    }
    if let Some(Ok(cookie)) = cookie.map(HeaderValue::from_str) {
        headers.append(SET_COOKIE, cookie);
    }
    response
}

/// The viewer's choices, kept in a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) theme: Theme,
    /// The seconds between two refreshes; 0 for none.
    pub(super) live: u16,
    /// True to show times in UTC.
    pub(super) is_utc: bool,
    /// True for keyboard shortcuts.
    pub(super) keys: bool,
}

/// The colors of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    System,
    Light,
    Dark,
}

impl Theme {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    pub(super) fn parse(text: &str) -> Self {
        match text {
            "light" => Self::Light,
            "dark" => Self::Dark,
            _ => Self::System,
        }
    }
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            theme: Theme::System,
            live: 2,
            is_utc: false,
            keys: true,
        }
    }
}

impl Choices {
    /// Reads the cookie, such as `dark-2-local-on`. Ignores what it does not know.
    pub(super) fn parse(cookie: &str) -> Self {
        let mut parts = cookie.split('-');
        let mut part = || parts.next().unwrap_or_default();
        let theme = Theme::parse(part());
        let live = part().parse().ok().filter(|live| LIVE.contains(live));
        Self {
            theme,
            live: live.unwrap_or(2),
            is_utc: part() == "utc",
            keys: part() != "off",
        }
    }

    /// Returns the value of the cookie.
    pub(super) fn cookie(self) -> String {
        let zone = if self.is_utc { "utc" } else { "local" };
        let keys = if self.keys { "on" } else { "off" };
        format!("{}-{}-{zone}-{keys}", self.theme.as_str(), self.live)
    }
}

/// The parts of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Forecast,
    Garbage,
    Schedules,
    Workers,
    System,
    Tokens,
    Help,
    None,
}

/// The navigation: section, path, label, key, and the scope that its page requires.
const SECTIONS: [(Section, &str, &str, &str, Scope); 8] = [
    (Section::Overview, "/", "Overview", "o", Scope::Read),
    (Section::Forecast, "/forecast", "Forecast", "f", Scope::Read),
    (Section::Garbage, "/garbage", "Garbage", "g", Scope::Read),
    (
        Section::Schedules,
        "/schedules",
        "Schedules",
        "s",
        Scope::Read,
    ),
    (Section::Workers, "/workers", "Workers", "w", Scope::Read),
    (Section::System, "/system", "System", "y", Scope::Read),
    (Section::Tokens, "/tokens", "Tokens", "t", Scope::Tokens),
    (Section::Help, "/help", "Help", "h", Scope::Read),
];

/// One page. As a response it has no frame yet; the middleware adds it, because it knows the viewer.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) status: StatusCode,
    pub(super) title: String,
    pub(super) section: Section,
    /// The pages above this one: label and path.
    pub(super) crumbs: Vec<(String, String)>,
    /// The buttons at the right of the title.
    pub(super) actions: Option<Markup>,
    pub(super) body: Markup,
    /// True if it says why another page cannot be shown, or an action not be done.
    pub(super) is_failure: bool,
    /// The page to go back to.
    pub(super) back: Option<String>,
    /// True to refresh it.
    pub(super) is_live: bool,
    /// The reason why it does not refresh.
    pub(super) still: &'static str,
}

impl Page {
    pub(super) fn new(section: Section, title: impl Into<String>, body: Markup) -> Self {
        Self {
            status: StatusCode::OK,
            title: title.into(),
            section,
            crumbs: Vec::new(),
            actions: None,
            body,
            is_failure: false,
            back: None,
            is_live: false,
            still: "This page does not refresh automatically.",
        }
    }

    /// Adds the pages of a topic above this one.
    pub(super) fn below_topic(mut self, topic: impl Display) -> Self {
        self.crumbs = vec![(topic.to_string(), format!("/topics/{topic}"))];
        self
    }

    /// Adds one more page above this one.
    pub(super) fn below(mut self, label: impl Into<String>, path: impl Into<String>) -> Self {
        self.crumbs.push((label.into(), path.into()));
        self
    }

    pub(super) fn actions(mut self, actions: Markup) -> Self {
        self.actions = Some(actions);
        self
    }

    pub(super) fn live(mut self) -> Self {
        self.is_live = true;
        self
    }

    /// Refreshes a list on its first page. On later ones, rows would move between pages.
    pub(super) fn live_list(mut self, is_first: bool) -> Self {
        self.is_live = is_first;
        self.still = "Only the first page of a list refreshes automatically.";
        self
    }

    /// Returns the whole document.
    pub(super) fn render(&self, context: &Context, line: Option<&str>) -> Markup {
        let choices = context.choices;
        let live = if self.is_live { choices.live } else { 0 };
        let sections =
            { SECTIONS.iter() }.filter(|(_, path, .., scope)| context.is_linked(path, *scope));
        let has_log_out = context.viewer.name().is_some();
        html! {
            (DOCTYPE)
            html lang="en" data-theme=(choices.theme.as_str()) {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (spelled_out(&self.title)) " · " (context.namespace) " · Lisa" }
                    link rel="icon" type="image/svg+xml" href=(context.link(assets::ICON.path()));
                    link rel="stylesheet" href=(context.link(assets::CSS.path()));
                    script defer src=(context.link(assets::MORPH.path())) {}
                    script defer src=(context.link(assets::JS.path())) {}
                    script defer src=(context.link(assets::CHARTS.path())) {}
                }
                body data-base=(context.base) data-live=(live) data-zone=(if choices.is_utc { "utc" } else { "local" })
                    data-keys=(if choices.keys { "on" } else { "off" }) {
                    a.skip href="#main" { "Skip to content" }
                    header.top {
                        a.brand href=(context.link("/")) {
                            svg.mark viewBox="0 0 32 32" width="22" height="22" aria-hidden="true" {
                                rect width="32" height="32" rx="8" class="mark-bg" {}
                                path d="M16 7a9 9 0 1 0 9 9M16 11v5.500l4 2.500" class="mark-fg" {}
                            }
                            span { "Lisa" }
                            span.namespace title="The namespace in Redis" { (context.namespace) }
                        }
                        nav.sections aria-label="Pages" {
                            @for (section, path, label, key, _) in sections {
                                a href=(context.link(path)) data-go=(key) aria-current=[(*section == self.section).then_some("page")] { (label) }
                            }
                        }
                        form.find role="search" action=(context.link("/find")) {
                            label.hidden for="find" { "Find a topic, a message by its id, or an ordering key" }
                            input #find name="q" type="search" placeholder="Find id, key, topic" autocomplete="off" spellcheck="false" maxlength="256";
                            kbd aria-hidden="true" { "/" }
                        }
                        @if has_log_out {
                            form.who method="post" action=(context.link("/logout")) {
                                a.name href=(context.link("/token")) title="The token of this session: its permissions and quotas" { (context.viewer.name().unwrap_or_default()) }
                                button.quiet { "Log out" }
                                button.quiet name="sessions" value="all" title="End all sessions of this token" { "Log out everywhere" }
                            }
                        }
                    }
                    @if matches!(context.viewer, Viewer::Anybody) {
                        aside.open-bar aria-label="Access" { "No tokens are configured: everyone who can reach this page may do everything." }
                    }
                    main #main tabindex="-1" {
                        div #flash role="status" aria-live="polite" {
                            @if let Some(line) = line {
                                @let is_done = line.starts_with('+');
                                p.flash.(if is_done { "is-ok" } else { "is-bad" }) {
                                    strong { (if is_done { "Done. " } else { "Nothing changed. " }) }
                                    (visible(line.get(1..).unwrap_or_default()))
                                }
                            }
                        }
                        div.title-row {
                            div {
                                @if !self.crumbs.is_empty() {
                                    nav.crumbs aria-label="Breadcrumb" {
                                        @for (label, path) in &self.crumbs { a href=(context.link(path)) { (visible(label)) } }
                                    }
                                }
                                h1 { (visible(&self.title)) }
                            }
                            @if let Some(actions) = &self.actions { div #actions .actions data-live { (actions) } }
                        }
                        (self.body)
                        @if let Some(back) = &self.back { p.buttons { a.button.plain href=(context.link(back)) { "Back" } } }
                    }
                    (footer(context, (!self.is_live).then_some(self.still)))
                }
            }
        }
    }
}

/// Returns the footer of a page that refreshes, or of one that does not, with the reason.
fn footer(context: &Context, still: Option<&str>) -> Markup {
    let choices = context.choices;
    let live = |seconds: u16| match seconds {
        0 => "off".to_owned(),
        1 => "every second".to_owned(),
        _ => format!("every {seconds} s"),
    };
    html! {
        footer.bottom {
            p #live-line .live-line {
                @if let Some(still) = still { span { (still) } } @else {
                    span.dot aria-hidden="true" {}
                    span #live-text { "As of " (clock(context.now)) ", on the clock of Redis" }
                }
            }
            form.choices method="post" action=(context.link("/choices")) {
                input type="hidden" name="next" value=(context.here);
                label { span { "Theme" }
                    select name="theme" {
                        @for theme in [Theme::System, Theme::Light, Theme::Dark] {
                            option value=(theme.as_str()) selected[theme == choices.theme] { (theme.as_str()) }
                        }
                    }
                }
                label { span { "Refresh" }
                    select name="live" {
                        @for seconds in LIVE { option value=(seconds) selected[seconds == choices.live] { (live(seconds)) } }
                    }
                }
                label { span { "Times" }
                    select name="zone" {
                        option value="local" selected[!choices.is_utc] { "local" }
                        option value="utc" selected[choices.is_utc] { "UTC" }
                    }
                }
                label { span { "Keys" }
                    select name="keys" {
                        option value="on" selected[choices.keys] { "on" }
                        option value="off" selected[!choices.keys] { "off" }
                    }
                }
                button.quiet { "Apply" }
            }
        }
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The reason a page cannot be shown, or an action not be done.
#[derive(Debug)]
pub(super) enum Failure {
    /// The viewer lacks the scope.
    Forbidden(Scope),
    /// The viewer does not reach what the request is about. The text says what it reaches.
    Reach(String),
    /// Anything else.
    Problem(Box<Problem>),
}

impl Failure {
    pub(super) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self::Problem(Box::new(Problem::new(code, detail)))
    }

    /// A field of a form or a query is wrong.
    pub(super) fn invalid(field: &str, error: &dyn Display) -> Self {
        Self::new(ProblemCode::Invalid, format!("{field}: {error}"))
    }

    /// Returns true if the topic does not exist.
    pub(super) fn is_unknown_topic(&self) -> bool {
        matches!(self, Self::Problem(problem) if problem.code() == ProblemCode::UnknownTopic)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ProblemCode::NotFound, detail)
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

impl From<BrokerError> for Failure {
    fn from(error: BrokerError) -> Self {
        Problem::from(error).into()
    }
}

impl From<GroupError> for Failure {
    fn from(error: GroupError) -> Self {
        Self::not_found(error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, title, detail) = match &self {
            Self::Forbidden(scope) => (
                StatusCode::FORBIDDEN,
                "Not allowed",
                format!("This requires the scope {scope}, which your token lacks."),
            ),
            Self::Reach(why) => (
                StatusCode::FORBIDDEN,
                "Not allowed",
                format!("Refused: {why}."),
            ),
            Self::Problem(problem) => {
                let status = problem.code().status();
                let title = match problem.code() {
                    ProblemCode::UnknownTopic => "No such topic",
                    ProblemCode::NotFound | ProblemCode::UnknownMessage => "Not found",
                    ProblemCode::Unavailable => "Redis did not answer",
                    ProblemCode::Indeterminate => "Outcome unknown",
                    ProblemCode::Invalid => "Invalid input",
                    ProblemCode::CrossSite => "Refused",
                    ProblemCode::Forbidden => "Not allowed",
                    _ => "Request failed",
                };
                (status, title, problem.detail().to_owned())
            }
        };
        let advice = match &self {
            Self::Problem(problem) if problem.code() == ProblemCode::Indeterminate => Some(
                "The action may have been done. Check the message or the topic before you repeat it.",
            ),
            Self::Problem(problem) if problem.code() == ProblemCode::Unavailable => {
                Some("Nothing was changed. Reload the page to retry.")
            }
            _ => None,
        };
        let body = html! {
            div.card.error-card {
                p.lead { (visible(&detail)) }
                @if let Some(advice) = advice { p { (advice) } }
            }
        };
        Page {
            status,
            is_failure: true,
            ..Page::new(Section::None, title, body)
        }
        .into_response()
    }
}

/// Returns a time of day in UTC, which the script replaces by the viewer's.
fn clock(at: UnixMs) -> Markup {
    let text = at.to_string();
    html! { time datetime=(text) data-show="clock" { (text.get(11..19).unwrap_or(&text)) " UTC" } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_their_cookie_and_nonsense_is_ignored() {
        let choices = Choices {
            theme: Theme::Dark,
            live: 15,
            is_utc: true,
            keys: false,
        };
        assert_eq!(Choices::parse(&choices.cookie()), choices);
        for cookie in ["", "---", "blue-3-mars-maybe", "\"><script>"] {
            assert_eq!(Choices::parse(cookie), Choices::default(), "{cookie}");
        }
    }
}
