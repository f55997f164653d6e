//! The list of schedules (recurring messages), by name.

use axum::Extension;
use axum::extract::{RawQuery, State as With};
use lisa_core::topic::ScheduleName;
use lisa_service::http::auth::Scope;
use maud::{Markup, html};

use super::Dashboard;
use super::form::Fields;
use super::page::{Context, Failure, Page, Section};
use super::parts::{
    Commands, Level, command, command_line, confirm_link, empty, relative_text, sign, tag,
};
use super::text::{grouped, visible};
use crate::operations::schedules::{DamagedSchedule, ScheduleList, ScheduleView};

/// The schedules of one page.
const ROWS: usize = 50;

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let prefix = fields.value::<ScheduleName>("prefix")?;
    let cursor = fields.value::<ScheduleName>("cursor")?;
    let of_prefix = prefix.as_ref().map_or("", ScheduleName::as_str);
    let list = dashboard.schedules().list(of_prefix, cursor.as_ref(), ROWS);
    let list = dashboard.read(list).await?;
    let is_first = cursor.is_none();
    let body = render(&context, of_prefix, is_first, &list);
    let create = confirm_link(
        &context,
        Scope::Operate,
        "Create a schedule",
        "/new-schedule",
        false,
    );
    let page = Page::new(Section::Schedules, "Schedules", body).actions(create);
    Ok(page.live_list(is_first))
}

fn render(context: &Context, prefix: &str, is_first: bool, list: &ScheduleList) -> Markup {
    let path = |cursor: Option<&str>| {
        let prefix = Some(("prefix", prefix)).filter(|(_, prefix)| !prefix.is_empty());
        let all = prefix.into_iter().chain(cursor.map(|at| ("cursor", at)));
        let all: Vec<_> = all.map(|(name, value)| format!("{name}={value}")).collect();
        match all.is_empty() {
            true => "/schedules".to_owned(),
            false => format!("/schedules?{}", all.join("&")),
        }
    };
    let mut words = vec!["schedules", "list"];
    if !prefix.is_empty() {
        words.extend(["--prefix", prefix]);
    }
    let what = "Read this list";
    let commands = Commands::default()
        .curl(context, what, "GET", format!("/v1{}", path(None)), None)
        .cli(context, what, "lisa-manager", &words);
    html! {
        form.filters action=(context.link("/schedules")) {
            label { span { "Names that begin with" } input name="prefix" value=(prefix) maxlength="47" autocomplete="off" spellcheck="false"; }
            button { "Show" }
        }
        div #schedules data-live data-steady {
            (damaged(context, &list.damaged))
            @if list.schedules.is_empty() && list.damaged.is_empty() { (nothing(context, prefix, is_first)) }
            @if !list.schedules.is_empty() { div.table-box { (table(context, &list.schedules)) } }
            nav.pages aria-label="Pages of schedules" {
                @if !is_first { a href=(context.link(path(None))) { "First page" } }
                @if let Some(next) = &list.next { a rel="next" href=(context.link(path(Some(next)))) { "Next " (ROWS) } } @else { span { "End of the list" } }
            }
        }
        (commands.render("schedules-commands"))
    }
}

fn nothing(context: &Context, prefix: &str, is_first: bool) -> Markup {
    if !is_first {
        return empty("No more schedules", html! {});
    }
    if !prefix.is_empty() {
        let advice = html! { p { "No name of a schedule begins with " strong { (prefix) } "." } };
        return empty("No schedules match", advice);
    }
    if context.viewer.reach().is_limited() {
        let advice = html! { p { "A schedule sends a recurring message (cron)." } };
        return empty("No schedules", advice);
    }
    let create = [
        "schedules",
        "create",
        "nightly",
        "topic=reports",
        "cron=0 0 3 * * *",
    ];
    empty(
        "No schedules",
        html! {
            p { "Create a recurring message (cron):" }
            (command(&command_line(context, "lisa-manager", &create)))
            p { "Or declare it in the configuration:" }
            pre tabindex="0" { "[schedules.nightly]\ncron = \"0 0 3 * * *\"\ntopic = \"reports\"" }
            p { "Check it before you reload the managers:" }
            (command("lisa-manager config check --config lisa.toml"))
        },
    )
}

/// Names the schedules whose definition cannot be read.
fn damaged(context: &Context, damaged: &[DamagedSchedule]) -> Markup {
    html! { @if !damaged.is_empty() { ul.list aria-label="Schedules that cannot be read" { @for one in damaged { li {
        (sign(Level::Bad)) strong { (one.schedule) } span { "cannot be read: " (visible(&one.error)) }
        (confirm_link(context, Scope::Operate, "Remove", format!("/schedules/{}/remove", one.schedule), true))
    } } } } }
}

fn table(context: &Context, schedules: &[ScheduleView]) -> Markup {
    let time = |at: &Option<String>| html! { @match at { Some(at) => (relative_text(at, context.now)), None => { span.zero { "–" } } } };
    html! { table.rows {
        caption.hidden { "Schedules" }
        thead { tr { th scope="col" { "Schedule" } th scope="col" { "State" } th scope="col" { "Topic" } th scope="col" { "Cron" } th scope="col" { "Next" } th scope="col" { "Sent until" } } }
        tbody { @for schedule in schedules { tr {
            th scope="row" data-label="Schedule" { a.row-link href=(context.link(format!("/schedules/{}", schedule.schedule))) { (schedule.schedule) } }
            td.error data-label="State" { (state(context, schedule)) }
            td data-label="Topic" { a href=(context.link(format!("/topics/{}", schedule.topic))) { (schedule.topic) } }
            td data-label="Cron" { span.mono { (visible(&schedule.cron)) } " " span.muted { (schedule.time_zone) } }
            td data-label="Next" { (time(&schedule.next)) }
            td data-label="Sent until" { (time(&schedule.sent_until)) }
        } } }
    } }
}

/// Returns the state of a schedule, the error of its last send, and the times that it missed.
fn state(context: &Context, schedule: &ScheduleView) -> Markup {
    let state = schedule.state();
    let level = match schedule.paused_since {
        Some(_) => Level::Warn,
        None => Level::Bad,
    };
    html! {
        @if !state.is_empty() { (tag(level, state)) }
        @if let Some(error) = &schedule.error { span.clip title=(super::text::spelled_out(error)) { (visible(error)) } }
        @if let Some(newest) = &schedule.newest_missed { span.muted { (grouped(schedule.missed)) " missed, the newest " (relative_text(newest, context.now)) } }
        @if state.is_empty() && schedule.missed == 0 { span.zero { "–" } }
    }
}
