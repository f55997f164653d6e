//! The form that creates a topic at run time.

use axum::Extension;
use axum::body::Body;
use axum::extract::State as With;
use axum::response::{IntoResponse, Response};
use lisa_core::broker::Declare;
use lisa_core::fields::{Description, Fields as _, TableReader, plain};
use lisa_core::topic::{Topic, TopicSettings};
use lisa_service::http::ProblemCode;
use maud::{Markup, html};
use serde_json::{Map, Value as Json};

use super::Dashboard;
use super::form::{Fields, WITH_DEFINITION};
use super::inputs::{FormReader, Inputs, Mistakes, mistakes_of};
use super::page::{Context, Failure, Page, Section};
use crate::operations::topics::put;

/// The field with the name of the topic.
const NAME: (&str, &str) = ("topic", "The name of the topic.");
/// The settings that are shown first; the others are below "More settings".
const FIRST: [&str; 5] = ["groups", "shards", "lease", "max_attempts", "max_messages"];

/// A form that is shown.
struct Form {
    /// The settings of a topic of which nothing is typed: those of `topic_defaults`.
    defaults: Map<String, Json>,
    /// The fields, as typed.
    fields: Fields,
    mistakes: Mistakes,
}

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
) -> Page {
    Form::new(&dashboard, Fields::default()).page(&context)
}

pub(super) async fn create(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    body: Body,
) -> Result<Response, Failure> {
    let fields = Fields::read(body, WITH_DEFINITION, &dashboard.0.bodies).await?;
    let mut form = Form::new(&dashboard, fields);
    let Some((name, settings)) = form.read() else {
        return Ok(form.refused(&context, ProblemCode::Invalid));
    };
    let (broker, config) = (dashboard.broker(), &dashboard.0.parts.config);
    let action = |verb: &str| dashboard.action(&context, verb);
    let mode = Declare::UpdateAt(0);
    let _slot = dashboard.0.searches.begin_with_quota().await?;
    let put = put(broker, config, &name, mode, |_| Ok(settings), action);
    match put.await {
        Ok((_, created)) => {
            dashboard.changed(&name).await;
            let what = if created {
                "is created"
            } else {
                "already has these settings"
            };
            Ok(context.done(format!("/topics/{name}"), format!("Topic {name} {what}.")))
        }
        Err(problem) => {
            form.mistakes = mistakes_of(&problem, NAME.0);
            Ok(form.refused(&context, problem.code()))
        }
    }
}

impl Form {
    fn new(dashboard: &Dashboard, fields: Fields) -> Self {
        let defaults = &dashboard.0.parts.config.topic_defaults;
        let Ok(Json::Object(defaults)) = serde_json::to_value(defaults) else {
            unreachable!("settings are an object");
        };
        Self {
            defaults,
            fields,
            mistakes: Mistakes::new(),
        }
    }

    /// Reads the topic. Notes everything that is wrong with it.
    fn read(&mut self) -> Option<(Topic, TopicSettings)> {
        let mut reader = FormReader::new(&self.fields).over(&self.defaults);
        let name = reader.required_field::<Topic>(NAME.0, NAME.1);
        let settings = TopicSettings::read_fields(&mut reader);
        self.mistakes = reader.mistakes;
        let name = name.filter(|_| self.mistakes.is_empty())?;
        Some((name, settings))
    }

    fn refused(&self, context: &Context, code: ProblemCode) -> Response {
        let page = Page {
            status: code.status(),
            ..self.page(context)
        };
        page.into_response()
    }

    fn page(&self, context: &Context) -> Page {
        let page = Page::new(Section::Overview, "Create a topic", self.render(context));
        page.below("Overview", "/")
    }

    /// Returns the settings as the form has them. A table is typed as JSON.
    fn settings(&self) -> Vec<Description> {
        let mut all = Description::all::<TopicSettings>();
        for (name, fields) in Description::tables::<TopicSettings>() {
            let fields: Vec<_> = fields.iter().map(|field| field.name).collect();
            let meaning = format!("A JSON object with {}.", fields.join(", "));
            all.push(Description {
                meaning,
                ..Description::optional::<String>(name, "")
            });
        }
        for field in &mut all {
            let default = self
                .defaults
                .get(field.name)
                .filter(|value| !value.is_null());
            field.default = default.map(|value| match value {
                Json::Array(items) => items
                    .iter()
                    .map(plain)
                    .collect::<Vec<_>>()
                    .join(", ")
                    .into(),
                value => plain(value).into(),
            });
        }
        all
    }

    fn render(&self, context: &Context) -> Markup {
        let inputs = Inputs {
            prefix: "topic",
            form: &self.fields,
            mistakes: &self.mistakes,
        };
        let settings = self.settings().into_iter();
        let (first, more): (Vec<_>, Vec<_>) =
            settings.partition(|setting| FIRST.contains(&setting.name));
        let is_used = |setting: &Description| inputs.is_used(setting.name);
        html! {
            form.card.ask.fields method="post" action=(context.link("/new-topic")) {
                (inputs.banner("Nothing was created. Correct what is marked below."))
                (inputs.input(&Description::required::<Topic>(NAME.0, NAME.1)))
                @for setting in &first { (inputs.input(setting)) }
                details #topic-more open[more.iter().any(is_used)] {
                    summary { "More settings" }
                    @for setting in &more { (inputs.input(setting)) }
                }
                p.muted { "A setting that is left empty has the value of " code { "topic_defaults" } " in the configuration of this manager." }
                div.buttons {
                    button.primary { "Create" }
                    a.button.plain href=(context.link("/")) { "Back" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn form(text: &str) -> Form {
        let mut defaults = TopicSettings {
            lease: Duration::from_secs(45),
            ..TopicSettings::default()
        };
        defaults.garbage.max_age = Duration::from_hours(1);
        let Ok(Json::Object(defaults)) = serde_json::to_value(&defaults) else {
            unreachable!()
        };
        Form {
            defaults,
            fields: Fields::parse(text.as_bytes()),
            mistakes: Mistakes::new(),
        }
    }

    #[test]
    fn what_is_not_typed_has_the_defaults_of_the_configuration() {
        let text = "topic=t&groups=a%2C+b&max_attempts=3&garbage=%7B%22topic%22%3A%22dead%22%7D&key_index=true";
        let (name, settings) = form(text).read().unwrap();
        assert_eq!(name.as_str(), "t");
        assert_eq!(settings.groups.len(), 2);
        assert_eq!(settings.lease, Duration::from_secs(45));
        assert_eq!((settings.max_attempts, settings.key_index), (3, true));
        let garbage = &settings.garbage;
        assert_eq!(garbage.max_age, Duration::from_hours(1));
        assert_eq!(garbage.topic.as_ref().map(Topic::as_str), Some("dead"));
    }

    #[test]
    fn each_bad_field_is_named_and_each_setting_has_an_input() {
        let mut bad = form("topic=A+B&lease=0s&garbage=%5B1&retry=%7B%22kind%22%3A%22x%22%7D");
        assert!(bad.read().is_none());
        let fields: Vec<_> = bad.mistakes.keys().map(String::as_str).collect();
        assert_eq!(fields, ["garbage", "lease", "retry", "topic"]);
        let settings = bad.settings();
        let has = |name: &&String| settings.iter().any(|field| field.name == name.as_str());
        assert!(bad.defaults.keys().all(|name| has(&name)));
        assert_eq!(settings.len(), bad.defaults.len());
    }
}
