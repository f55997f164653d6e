//! The examination of a topic: the findings of the last one by this process, and the actions that examine and repair.

use axum::Extension;
use axum::extract::{Path, State as With};
use axum::response::Response;
use lisa_core::broker::Outcome;
use lisa_core::topic::Topic;
use lisa_service::http::auth::Scope;
use lisa_service::http::{ProblemCode, ends_with_client};
use maud::{Markup, html};

use super::Dashboard;
use super::actions::Ask;
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, Level, confirm_link, post_button, relative, sign};
use super::text::{grouped, part, visible};
use crate::operations::audit;
use crate::operations::doctor::Examined;

fn parse(topic: &str) -> Result<Topic, Failure> {
    let topic = topic.parse::<Topic>();
    topic.map_err(|error| Failure::invalid("topic", &error))
}

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(topic): Path<String>,
) -> Result<Page, Failure> {
    let topic = parse(&topic)?;
    let name = topic.as_str();
    let last = dashboard.0.parts.examinations.of(&topic);
    // A topic that was examined, or whose settings cannot be read, is damaged, and does exist.
    if last.is_none()
        && let Err(failure) = dashboard.topic(name).await
        && failure.is_unknown_topic()
    {
        dashboard.read(dashboard.broker().refresh()).await?;
        if !dashboard.broker().unreadable_topics().contains_key(name) {
            return Err(failure);
        }
    }
    let at = format!("/v1/topics/{name}/doctor");
    let commands = repair_commands(&context, &topic)
        .curl(&context, "Examine", "GET", &at, None)
        .cli(&context, "Examine", "lisa-manager", &["doctor", name]);
    let body = html! {
        section #examined data-live aria-label="Last examination" {
            @match &last {
                Some(last) => (findings(&context, last)),
                None => p.card { "This manager has not examined the topic since it started." },
            }
        }
        div.buttons {
            (post_button(&context, Scope::Operate, "Examine", format!("/topics/{name}/doctor/examine")))
            (confirm_link(&context, Scope::Operate, "Examine and repair", format!("/topics/{name}/doctor/repair"), false))
        }
        p.muted { "An examination reads every message of the topic, and takes at most a quarter of the time of Redis. The topic stays in use. Each repair is atomic." }
        (commands.render("doctor-commands"))
    };
    Ok(Page::new(Section::None, "Examination", body)
        .below_topic(name)
        .live())
}

/// Asks before a repair.
pub(super) async fn ask(
    Extension(context): Extension<Context>,
    Path((topic, verb)): Path<(String, String)>,
) -> Result<Page, Failure> {
    let topic = parse(&topic)?;
    if verb != "repair" {
        return Err(unknown(&verb));
    }
    let back = format!("/topics/{topic}/doctor");
    let ask = Ask {
        title: format!("Repair {topic}?"),
        text: html! {
            p.lead { "Lisa examines the topic, and repairs each fault that it finds." }
            p.muted { "A message whose record is gone cannot be restored: it is removed, and counted as lost. An examination without a repair lists the faults and changes nothing." }
        },
        fields: html! {},
        label: "Examine and repair".into(),
        typed: None,
        path: format!("{back}/repair"),
        back: back.clone(),
        commands: repair_commands(&context, &topic),
    };
    Ok(ask
        .page(&context)
        .below_topic(topic)
        .below("Examination", back))
}

fn repair_commands(context: &Context, topic: &Topic) -> Commands {
    let path = format!("/v1/topics/{topic}/doctor/repair");
    let words = ["doctor", "--repair", topic.as_str()];
    Commands::default()
        .curl(context, "Repair", "POST", path, None)
        .cli(context, "Repair", "lisa-manager", &words)
}

fn unknown(verb: &str) -> Failure {
    Failure::not_found(format!("the doctor has no action {verb:?}"))
}

fn findings(context: &Context, examined: &Examined) -> Markup {
    let checkup = &examined.checkup;
    html! {
        p.card {
            (sign(level(examined))) " " (summary(examined)) " "
            (relative(examined.at, context.now))
        }
        @if !checkup.findings.is_empty() { div.table-box { table.rows {
            caption.hidden { "The first findings" }
            thead { tr { th scope="col" { "Fault" } th scope="col" { "Group" } th scope="col" { "Id" } th scope="col" { "Seen" } th scope="col" { "Outcome" } } }
            tbody { @for finding in &checkup.findings { tr {
                th scope="row" data-label="Fault" { (finding.fault.as_str()) }
                td data-label="Group" { (visible(&finding.group)) }
                td.mono data-label="Id" { @if !finding.id.is_empty() {
                    a href=(context.link(format!("/topics/{}/messages/{}", checkup.topic, part(&finding.id)))) { (visible(&finding.id)) }
                } }
                td.error data-label="Seen" { (visible(&finding.seen)) }
                td data-label="Outcome" { (finding.outcome.as_str()) }
            } } }
        } } }
        @for hint in &checkup.hints { p.muted { (visible(&hint.group)) " " (visible(&hint.seen)) } }
    }
}

/// Returns the state of a topic after an examination.
pub(super) fn level(examined: &Examined) -> Level {
    match examined.checkup.is_healthy() {
        true => Level::Ok,
        false => Level::Bad,
    }
}

/// Returns the result of an examination in words.
pub(super) fn summary(examined: &Examined) -> String {
    let checkup = &examined.checkup;
    let mut text = format!(
        "Faults left: {}, repaired: {}. Messages examined: {}",
        grouped(checkup.count(Outcome::Found)),
        grouped(checkup.count(Outcome::Repaired)),
        grouped(checkup.messages),
    );
    if checkup.unclear > 0 {
        text.push_str(&format!(", unclear: {}", grouped(checkup.unclear)));
    }
    text.push('.');
    text
}

/// Examines a topic, and repairs it if asked.
pub(super) async fn run(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path((topic, verb)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let topic = parse(&topic)?;
    let repair = match &*verb {
        "examine" => false,
        "repair" => true,
        _ => return Err(unknown(&verb)),
    };
    let examinations = &dashboard.0.parts.examinations;
    // An examination is a lot of work for Redis.
    ends_with_client();
    let Some(_lock) = examinations.try_lock() else {
        let detail = "another examination is running in this process; retry later";
        return Err(Failure::new(ProblemCode::Busy, detail));
    };
    let examine = dashboard.broker().examine_by_name(&topic, repair);
    let checkup = if repair {
        let action = dashboard.action(&context, "repair").topic(&topic);
        action.run(examine, audit::repaired).await?
    } else {
        examine.await?
    };
    examinations.note(dashboard.broker(), &checkup);
    dashboard.changed(&topic).await;
    let path = format!("/topics/{topic}/doctor");
    let line = match examinations.of(&topic) {
        Some(examined) => summary(&examined),
        None => audit::repaired(&checkup),
    };
    Ok(context.done(path, line))
}
