//! The form that creates a schedule (recurring message), or edits one that was created at run time.
//!
//! An edit names the version that it began with, so of two that begin with the same one, only one is stored.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::response::{IntoResponse, Response};
use lisa_core::fields::{Describer, Description, TableReader, plain};
use lisa_core::message::MessageOptions;
use lisa_core::topic::ScheduleName;
use lisa_service::http::{Problem, ProblemCode};
use lisa_service::recurring::RecurringMessage;
use maud::{Markup, html};
use serde_json::{Map, Value as Json};

use super::Dashboard;
use super::form::{Fields, WITH_DEFINITION};
use super::inputs::{FormReader, Inputs, Mistakes, mistakes_of};
use super::message::may_see;
use super::page::{Context, Failure, Page, Section};
use super::schedule::{CONTENT, name};

/// The field with the name of a new schedule.
const NAME: (&str, &str) = ("schedule", "The name of the schedule.");

/// A form that is shown.
#[derive(Default)]
struct Form<'f> {
    /// The schedule to edit; none to create one.
    schedule: Option<&'f ScheduleName>,
    /// The fields, as typed.
    fields: Fields,
    mistakes: Mistakes,
    /// The reason why the viewer does not see payload and headers, which then stay as they are.
    hidden: Option<&'static str>,
}

pub(super) async fn show_new(Extension(context): Extension<Context>) -> Page {
    Form::default().page(&context)
}

pub(super) async fn create(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    body: Body,
) -> Result<Response, Failure> {
    let mut form = Form {
        fields: Fields::read(body, WITH_DEFINITION, &dashboard.0.bodies).await?,
        ..Form::default()
    };
    let mut reader = FormReader::new(&form.fields);
    let name = reader.required_field::<ScheduleName>(NAME.0, NAME.1);
    let read = RecurringMessage::read(&mut reader);
    form.mistakes = reader.mistakes;
    match (name, read) {
        (Some(name), Some(schedule)) if form.mistakes.is_empty() => {
            form.put(&dashboard, &context, &name, &schedule, 0).await
        }
        _ => Ok(form.refused(&context, ProblemCode::Invalid)),
    }
}

pub(super) async fn show_edit(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(schedule): Path<String>,
) -> Result<Page, Failure> {
    let name = name(&schedule)?;
    let details = dashboard.schedule(&name).await?;
    dashboard.schedules().not_in_file(&name)?;
    let form = Form {
        schedule: Some(&name),
        fields: fields_of(&details.definition, details.version.unwrap_or_default()),
        mistakes: Mistakes::new(),
        hidden: may_see(&dashboard, &context).err(),
    };
    Ok(form.page(&context))
}

pub(super) async fn edit(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(schedule): Path<String>,
    body: Body,
) -> Result<Response, Failure> {
    let name = name(&schedule)?;
    let fields = Fields::read(body, WITH_DEFINITION, &dashboard.0.bodies).await?;
    let version = fields.version()?;
    let mut form = Form {
        schedule: Some(&name),
        fields,
        mistakes: Mistakes::new(),
        hidden: may_see(&dashboard, &context).err(),
    };
    let mut reader = FormReader::new(&form.fields);
    let read = RecurringMessage::read(&mut reader);
    form.mistakes = reader.mistakes;
    let Some(mut schedule) = read.filter(|_| form.mistakes.is_empty()) else {
        return Ok(form.refused(&context, ProblemCode::Invalid));
    };
    if form.hidden.is_some() {
        // If these are of another version, the edit is refused.
        let stored = dashboard.schedule(&name).await?.definition;
        let stored = RecurringMessage::from_fields(&stored).map_err(Problem::from)?;
        schedule.message.payload = stored.message.payload;
        schedule.message.headers = stored.message.headers;
    }
    form.put(&dashboard, &context, &name, &schedule, version)
        .await
}

impl Form<'_> {
    /// Stores a schedule, if it is at this version.
    async fn put(
        mut self,
        dashboard: &Dashboard,
        context: &Context,
        name: &ScheduleName,
        schedule: &RecurringMessage,
        version: u64,
    ) -> Result<Response, Failure> {
        let action = |verb: &str| dashboard.action(context, verb);
        let schedules = dashboard.schedules();
        match schedules.put(name, schedule, Some(version), action).await {
            Ok((details, created)) => {
                dashboard.0.parts.stored_schedules.changed.notify_one();
                let what = match (created, details.version == Some(version)) {
                    (true, _) => "is created",
                    (false, true) => "already has this definition",
                    (false, false) => "is changed",
                };
                let path = format!("/schedules/{name}");
                Ok(context.done(path, format!("Schedule {name} {what}.")))
            }
            Err(problem) => {
                let of_name = match self.schedule {
                    Some(_) => "",
                    None => NAME.0,
                };
                self.mistakes = mistakes_of(&problem, of_name);
                Ok(self.refused(context, problem.code()))
            }
        }
    }

    fn refused(&self, context: &Context, code: ProblemCode) -> Response {
        let page = Page {
            status: code.status(),
            ..self.page(context)
        };
        page.into_response()
    }

    fn page(&self, context: &Context) -> Page {
        let title = match self.schedule {
            Some(name) => format!("Edit schedule {name}"),
            None => "Create a schedule".to_owned(),
        };
        let page = Page::new(Section::Schedules, title, self.render(context));
        let page = page.below("Schedules", "/schedules");
        match self.schedule {
            Some(name) => page.below(name.as_str(), format!("/schedules/{name}")),
            None => page,
        }
    }

    fn render(&self, context: &Context) -> Markup {
        let (first, more) = inputs();
        let (action, back) = match self.schedule {
            Some(name) => (
                format!("/schedules/{name}/edit"),
                format!("/schedules/{name}"),
            ),
            None => ("/new-schedule".to_owned(), "/schedules".to_owned()),
        };
        let inputs = Inputs {
            prefix: "schedule",
            form: &self.fields,
            mistakes: &self.mistakes,
        };
        let is_shown =
            |field: &&Description| self.hidden.is_none() || !CONTENT.contains(&field.name);
        let control = |field: &Description| match field.name {
            "payload" => inputs.payload(),
            "headers" => inputs.headers(),
            _ => inputs.input(field),
        };
        let is_used = |field: &Description| inputs.is_used(field.name);
        html! {
            form.card.ask.fields method="post" action=(context.link(&action)) {
                (inputs.banner("Nothing was stored. Correct what is marked below."))
                @if self.schedule.is_some() {
                    @if self.mistakes.contains_key("") { p { a href=(context.link(&action)) { "Discard these changes, and load the stored definition" } } }
                    input type="hidden" name="version" value=(self.fields.text("version").unwrap_or_default());
                } @else { (inputs.input(&Description::required::<ScheduleName>(NAME.0, NAME.1))) }
                @for field in first.iter().filter(is_shown) { (control(field)) }
                @if let Some(reason) = self.hidden { p.muted { (reason) " They stay as they are." } }
                details #schedule-more open[more.iter().any(is_used)] {
                    summary { "More options" }
                    @for field in &more { (inputs.input(field)) }
                }
                div.buttons {
                    button.primary { @if self.schedule.is_some() { "Save" } @else { "Create" } }
                    a.button.plain href=(context.link(&back)) { "Back" }
                }
            }
        }
    }
}

/// Returns the fields of a definition: those of a schedule, and those that are options of its messages.
fn inputs() -> (Vec<Description>, Vec<Description>) {
    let mut described = Describer::default();
    RecurringMessage::read(&mut described);
    let options = Description::all::<MessageOptions>();
    let option = |name: &str| options.iter().find(|option| option.name == name).cloned();
    let fields = described.fields.into_iter();
    let (mut more, first): (Vec<_>, Vec<_>) =
        fields.partition(|field| option(field.name).is_some());
    // A table is typed as JSON, as if it was the option of one message.
    let tables = described.tables.into_iter();
    more.extend(tables.filter_map(|(name, _)| option(name)));
    (first, more)
}

/// Returns the fields of the form for a definition.
fn fields_of(definition: &Map<String, Json>, version: u64) -> Fields {
    let mut fields = Fields::default();
    for (name, value) in definition {
        let text = match (name.as_str(), value) {
            ("headers", Json::Object(headers)) => {
                let lines = headers.iter();
                let lines = lines.map(|(name, value)| format!("{name}: {}", plain(value)));
                lines.collect::<Vec<_>>().join("\n")
            }
            _ => plain(value),
        };
        fields.set(name, text);
    }
    fields.set("version", version.to_string());
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &Fields) -> Result<RecurringMessage, Mistakes> {
        let mut reader = FormReader::new(fields);
        let read = RecurringMessage::read(&mut reader);
        match read {
            Some(read) if reader.mistakes.is_empty() => Ok(read),
            _ => Err(reader.mistakes),
        }
    }

    #[test]
    fn the_form_of_a_definition_is_read_as_that_definition() {
        let text = r#"{"topic": "reports", "cron": "0 30 2 * * *", "time_zone": "Europe/Berlin", "catch_up": "6h",
            "payload": " {\n} ", "headers": {"content-type": "a/b", "x-note": "c: d"}, "key": "5", "merge_key": "m", "priority": -3,
            "ttl": "12h", "max_attempts": 7, "retry": {"kind": "list", "delays": ["5s", "1m"]}}"#;
        let schedule = RecurringMessage::from_definition(text).unwrap();
        let definition = schedule.fields();
        assert_eq!(read(&fields_of(&definition, 1)), Ok(schedule));
        // Each of them has an input.
        let (first, more) = inputs();
        let all: Vec<_> = first.iter().chain(&more).map(|field| field.name).collect();
        assert!(
            definition.keys().all(|field| all.contains(&field.as_str())),
            "{all:?}"
        );
        assert_eq!(all.len(), definition.len());
        assert_eq!(first[0].name, "topic");
    }

    #[test]
    fn each_bad_field_is_named_with_its_mistake() {
        let text =
            b"cron=x&time_zone=Mars&headers=a+b%3A+c&retry=%7B%22kind%22%3A%22x%22%7D&priority=y";
        let mistakes = read(&Fields::parse(text)).unwrap_err();
        let fields: Vec<_> = mistakes.keys().map(String::as_str).collect();
        let expected = ["cron", "headers", "priority", "retry", "time_zone", "topic"];
        assert_eq!(fields, expected, "{mistakes:?}");
        assert!(mistakes["retry"].starts_with("kind: "), "{mistakes:?}");
        assert!(mistakes["topic"].starts_with("missing: "), "{mistakes:?}");
        let text = b"topic=t&cron=0+0+3+*+*+*&retry=%5B1";
        let mistakes = read(&Fields::parse(text)).unwrap_err();
        assert_eq!(mistakes.keys().collect::<Vec<_>>(), ["retry"]);
    }
}
