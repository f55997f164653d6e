//! The front page: whether all is well, what needs attention, what goes in and out, and the topics with most trouble first.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, State as With};
use lisa_core::broker::{GroupStats, TopicStats};
use lisa_core::time::millis;
use lisa_core::topic::{Group, Topic};
use lisa_service::http::auth::Scope;
use maud::{Markup, html};

use super::Dashboard;
use super::cache::Reading;
use super::form::Fields;
use super::history::{self, Charts};
use super::page::{Context, Failure, Page, Section};
use super::parts::{
    Level, accounted_for, authorization, command, confirm_link, count, count_link, empty,
    per_second, rate_tiles, sign, staleness, tag, tile,
};
use super::text::{grouped, messages, part, span, spelled_out, visible};
use crate::operations::attention::{AttentionQuery, ReportedKind, Trouble, TroubleKind, attention};
use crate::operations::newest_counts::NewestCounts;
use crate::operations::rates::Rate;
use crate::operations::schedules::FailingSchedules;
use crate::operations::topics::StatsList;

/// The rows of one page of topics.
const ROWS: usize = 100;
/// The most things that are listed as needing attention, unless the query asks for all.
const MOST_TROUBLES: usize = 12;
/// The age of counts from which something is wrong: managers write them every five seconds.
const OLD: Duration = Duration::from_secs(30);

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let filter = fields.text("filter").unwrap_or_default().to_lowercase();
    let page = fields.value::<usize>("page")?.unwrap_or(1).max(1);
    let most = match fields.text("attention") {
        Some("all") => usize::MAX,
        _ => MOST_TROUBLES,
    };
    let (reading, failing) =
        tokio::join!(dashboard.counts(), dashboard.failing_schedules(&context));
    let period = fields.value("history")?;
    let charts = history::read_of_all(&dashboard, &reading, period, &context.zone).await?;
    let rates = RatesNow::of(&dashboard, &reading);
    let body = render(
        &context,
        (&reading, failing.value.as_deref()),
        (charts.as_ref(), &rates),
        &filter,
        page,
        (most, dashboard.0.parts.config.manager.is_dev),
    );
    let page = Page::new(Section::Overview, "Overview", body).live();
    Ok(match reading.value.as_deref() {
        Some(counts) => page.actions(health(&counts.list, counts.age + reading.age)),
        None => page,
    })
}

/// The present rates of the topics that the viewer reaches, and their sums.
struct RatesNow {
    topics: BTreeMap<Topic, Rate>,
    total: Option<Rate>,
}

impl RatesNow {
    fn of(dashboard: &Dashboard, reading: &Reading<NewestCounts>) -> Self {
        let rates = dashboard.0.rates.lock();
        let topics = { reading.value.iter() }.flat_map(|counts| &counts.list.topics);
        let of = |stats: &TopicStats| Some((stats.topic.clone(), rates.of(&stats.topic)?));
        let names = topics.clone().map(|stats| &stats.topic);
        Self {
            total: rates.total(names),
            topics: topics.filter_map(of).collect(),
        }
    }
}

/// Returns where to look at a trouble: the path, and its label.
fn remedy(trouble: &Trouble) -> (String, &'static str) {
    let ReportedKind::Known(kind) = trouble.kind else {
        // Of another version.
        return ("/system".to_owned(), "System");
    };
    let page = match (&trouble.topic, &trouble.schedule) {
        (_, Some(schedule)) => format!("/schedules/{schedule}"),
        (Some(topic), None) => format!("/topics/{}", part(topic)),
        (None, None) if kind == TroubleKind::FailingSchedules => "/schedules".to_owned(),
        (None, None) => return ("/workers".to_owned(), "Workers"),
    };
    match kind {
        TroubleKind::Damaged | TroubleKind::Unaccounted | TroubleKind::MissingRecords => {
            (format!("{page}/doctor"), "Examine")
        }
        TroubleKind::NoConsumer => ("/workers".to_owned(), "Workers"),
        TroubleKind::Garbage => {
            let group = trouble.group.as_ref().map_or("", Group::as_str);
            (format!("{page}/garbage?group={group}"), "See errors")
        }
        TroubleKind::NoManager
        | TroubleKind::Unreadable
        | TroubleKind::Late
        | TroubleKind::Full
        | TroubleKind::Paused
        | TroubleKind::Retiring
        | TroubleKind::Unconfigured
        | TroubleKind::FailingSchedules => (page, "Open"),
    }
}

/// Returns how much trouble a topic has; more comes first.
fn trouble_of(topic: &TopicStats) -> (bool, bool, u64, u64, u64) {
    let sum = |of: fn(&GroupStats) -> u64| topic.groups.iter().map(of).sum::<u64>();
    (
        topic.conservation_error + topic.missing_records() > 0,
        topic
            .groups
            .iter()
            .any(|group| group.ready > 0 && group.consumers == 0),
        sum(|group| group.garbage),
        topic.overdue_ms / 1000,
        topic.stored,
    )
}

fn render(
    context: &Context,
    (reading, failing): (&Reading<NewestCounts>, Option<&FailingSchedules>),
    (charts, rates): (Option<&Charts>, &RatesNow),
    filter: &str,
    page: usize,
    (most, is_dev): (usize, bool),
) -> Markup {
    let Some(counts) = reading.value.as_deref() else {
        return staleness("stale", reading);
    };
    let list = &counts.list;
    let troubles = attention(list, failing, &AttentionQuery::default(), is_dev).troubles;
    let mut topics: Vec<&TopicStats> = list
        .topics
        .iter()
        .filter(|topic| topic.topic.as_str().contains(filter))
        .collect();
    topics.sort_by(|one, other| {
        trouble_of(other)
            .cmp(&trouble_of(one))
            .then_with(|| one.topic.cmp(&other.topic))
    });
    let pages = topics.len().div_ceil(ROWS).max(1);
    let page = page.min(pages);
    let period = charts.map(|charts| format!("&history={}", charts.chosen));
    let period = period.unwrap_or_default();
    let link = |page| context.link(format!("/?filter={}&page={page}{period}", part(filter)));
    html! {
        (staleness("stale", reading))
        section #attention data-live aria-labelledby="attention-title" {
            @if !troubles.is_empty() {
                h2 #attention-title { "Needs attention " span.badge { (troubles.len()) } }
                ul.troubles {
                    @for trouble in troubles.iter().take(most) {
                        @let (subject, (path, label)) = (trouble.subject(), remedy(trouble));
                        li {
                            (sign(trouble.status.into()))
                            @if !subject.is_empty() { span.at { (visible(&subject)) } }
                            span.text { (visible(&trouble.what)) }
                            a href=(context.link(&path)) aria-label=(spelled_out(format!("{label}: {subject}").trim_end_matches(": "))) { (label) }
                        }
                    }
                    @if troubles.len() > most { li.more { a href=(format!("{}&attention=all#attention-title", link(page))) { "and " (troubles.len() - most) " more" } } }
                }
            } @else { h2 #attention-title .hidden { "Nothing needs attention" } }
        }
        section #totals data-live aria-label="Totals" { (totals(list, rates.total)) }
        @if let Some(charts) = charts.filter(|_| !list.topics.is_empty()) { (charts.render(context, &format!("/?filter={}&page={page}&history=", part(filter)))) }
        section aria-labelledby="topics-title" {
            div.section-row {
                h2 #topics-title { "Topics " span.badge { (grouped(list.topics.len() as u64)) } }
                (confirm_link(context, Scope::Operate, "Create a topic", "/new-topic", false))
                @if list.topics.len() > 8 || !filter.is_empty() {
                    form.filter action=(context.link("/")) {
                        label.hidden for="filter" { "Filter topics by name" }
                        input #filter name="filter" type="search" value=(filter) placeholder="Filter by name" maxlength="64";
                    }
                }
            }
            @if list.topics.is_empty() {
                (empty("No topics yet", no_topics(context)))
            } @else {
                div #topics data-live .table-box { (table(context, rates, topics.iter().skip((page - 1) * ROWS).take(ROWS))) }
                @if pages > 1 {
                    nav.pages aria-label="Pages of topics" {
                        @if page > 1 { a href=(link(page - 1)) { "Previous" } }
                        span { "Page " (page) " of " (pages) }
                        @if page < pages { a href=(link(page + 1)) { "Next" } }
                    }
                }
            }
        }
    }
}

/// Returns what to do if there is no topic. The example is for viewers who reach its topic.
fn no_topics(context: &Context) -> Markup {
    let line = format!(
        "curl{} -d '{{\"order\": 7}}' -H 'Content-Type: application/json' -H 'Lisa-Delay: 30s' {}/v1/topics/orders/messages",
        authorization(context),
        context.producer
    );
    html! {
        p {
            "Create one here, or declare it in the configuration under " code { "[topics]" } "."
            @if context.reaches_all_topics() { " In development mode (" code { "lisa-manager dev" } "), the first message declares it:" }
        }
        @if context.reaches_all_topics() { (command(&line)) }
    }
}

fn health(list: &StatsList, age: Duration) -> Markup {
    let lost: u64 = list
        .topics
        .iter()
        .map(|topic| topic.conservation_error + topic.missing_records())
        .sum();
    // A pause is intended, and named below.
    let oldest = { list.topics.iter().filter(|topic| !topic.paused) }
        .flat_map(|topic| &topic.groups)
        .filter(|group| !group.paused)
        .map(|group| group.oldest_due_age_ms)
        .max()
        .unwrap_or(0);
    html! { div #health .health role="group" aria-label="Health" {
        p {
            @if lost > 0 { (sign(Level::Bad)) span { (messages(lost)) " unaccounted for" } }
            @else if !list.missing.is_empty() { (sign(Level::Warn)) span { "Some topics could not be read" } }
            @else { (accounted_for(list.topics.iter().map(TopicStats::lost).sum())) }
        }
        p {
            @match list.managers {
                Some(0) => { (sign(Level::Bad)) span { "No manager is running" } }
                Some(1) => { (sign(Level::Ok)) span { "1 manager" } }
                Some(managers) => { (sign(Level::Ok)) span { (managers) " managers" } }
                None => { (sign(Level::Unknown)) span { "Managers unknown" } }
            }
        }
        p {
            (sign(if Duration::from_millis(oldest) > AttentionQuery::default().late { Level::Warn } else { Level::Ok }))
            span { @if oldest == 0 { "Nothing is overdue" } @else { "Oldest due message " (span(oldest)) " late" } }
        }
        p {
            (sign(if age >= OLD { Level::Warn } else { Level::Ok }))
            span { "Counted within the last " (span(millis(age).max(1000))) }
        }
    } }
}

fn totals(list: &StatsList, rate: Option<Rate>) -> Markup {
    let groups = || list.topics.iter().flat_map(|topic| &topic.groups);
    let sum = |of: fn(&GroupStats) -> u64| html! { (grouped(groups().map(of).sum())) };
    let waiting = list.topics.iter().map(|topic| topic.waiting).sum();
    html! {
        dl.tiles.is-compact {
            (rate_tiles(rate))
            (tile("Waiting", html! { (grouped(waiting)) }, html! { "not yet due" }))
            (tile("Held back", sum(|group| group.backlog + group.parked), html! { "backlog, parked" }))
            (tile("Ready", sum(|group| group.ready), html! { "for a consumer" }))
            (tile("In flight", sum(|group| group.in_flight), html! { "at a consumer" }))
            (tile("Retry", sum(|group| group.retry), html! { "before a retry" }))
            (tile("Garbage", sum(|group| group.garbage), html! { "dead letters" }))
        }
    }
}

fn table<'a>(
    context: &Context,
    rates: &RatesNow,
    topics: impl Iterator<Item = &'a &'a TopicStats>,
) -> Markup {
    html! {
        table.rows.many-columns {
            caption.hidden { "Topics, those with most trouble first" }
            thead { tr {
                th scope="col" { "Topic" }
                th.n scope="col" title="Messages sent per second" { "Sent/s" }
                th.n scope="col" title="Deliveries acknowledged per second; a message counts once for each group" { "Acked/s" }
                th.n scope="col" { "Waiting" } th.n scope="col" { "Held back" } th.n scope="col" { "Ready" }
                th.n scope="col" { "In flight" } th.n scope="col" { "Retry" } th.n scope="col" { "Garbage" } th.n scope="col" { "Oldest due" }
                th.n scope="col" { "Consumers" }
            } }
            tbody {
                @for topic in topics {
                    @let rate = rates.topics.get(&topic.topic).copied();
                    @let name = topic.topic.as_str();
                    @let sum = |of: fn(&GroupStats) -> u64| topic.groups.iter().map(of).sum::<u64>();
                    @let list = |state: &str| context.link(match topic.groups.as_slice() {
                        [only] => format!("/topics/{name}/messages?state={state}&group={}", only.group),
                        _ => format!("/topics/{name}"),
                    });
                    tr id=(format!("topic-{name}")) {
                        th scope="row" data-label="Topic" {
                            a.row-link href=(context.link(format!("/topics/{name}"))) { (name) }
                            @if topic.paused { " " (tag(Level::Warn, "paused")) }
                            @if topic.migrating.is_some() { " " (tag(Level::Warn, "resharding")) }
                            @if topic.conservation_error + topic.missing_records() > 0 { " " (tag(Level::Bad, "damaged")) }
                        }
                        td.n data-label="Sent/s" { (per_second(rate.map(|rate| rate.sent))) }
                        td.n data-label="Acked/s" { (per_second(rate.map(|rate| rate.acked))) @if topic.groups.len() > 1 { " " span.muted title="The deliveries of all groups" { "in " (topic.groups.len()) " groups" } } }
                        td.n data-label="Waiting" { (count_link(topic.waiting, &context.link(format!("/topics/{name}/messages?state=waiting")))) }
                        td.n data-label="Held back" { (count(sum(|group| group.backlog + group.parked))) }
                        td.n data-label="Ready" { (count_link(sum(|group| group.ready), &list("ready"))) }
                        td.n data-label="In flight" { (count_link(sum(|group| group.in_flight), &list("in_flight"))) }
                        td.n data-label="Retry" { (count_link(sum(|group| group.retry), &list("retry"))) }
                        td.n data-label="Garbage" { (count_link(sum(|group| group.garbage), &context.link(format!("/topics/{name}/garbage")))) }
                        td.n data-label="Oldest due" { @if topic.overdue_ms == 0 { span.zero { "–" } } @else { (span(topic.overdue_ms)) } }
                        td.n data-label="Consumers" { (consumers(&topic.groups)) }
                    }
                }
            }
        }
    }
}

/// Returns the number of consumers of all groups, or a warning if nobody reads what is ready in one.
fn consumers(groups: &[GroupStats]) -> Markup {
    let is_unread = |group: &&GroupStats| group.ready > 0 && group.consumers == 0;
    html! {
        @if groups.iter().filter(is_unread).count() > 0 { (tag(Level::Bad, "none")) }
        @else { (count(groups.iter().map(|group| group.consumers).sum())) }
    }
}
