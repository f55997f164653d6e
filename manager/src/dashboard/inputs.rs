//! The inputs of a form whose fields are declared elsewhere: reads what was typed, and shows it with its mistakes.

use std::collections::BTreeMap;

use lisa_core::fields::{
    self, Description, Field, Given, JsonReader, Limits, Reader, TableReader, Value, read_within,
};
use lisa_service::http::{Problem, ProblemCode};
use maud::{Markup, html};
use serde_json::{Map, Value as Json};

use super::form::Fields;
use super::parts::{Level, sign};
use super::text::visible;

/// The field whose text is kept as it was typed.
const PAYLOAD: &str = "payload";
/// The default of an option that is not set.
const UNSET: &str = "none";
/// The kind of a field that is a box to check.
const FLAG: &str = bool::KIND;

/// The mistakes in a form, by field; those without a field have the empty name.
pub(super) type Mistakes = BTreeMap<String, String>;

/// Reads declared fields from a form. A table of texts is typed as lines, and another table as JSON.
pub(super) struct FormReader<'f> {
    form: &'f Fields,
    /// The values of fields that are left empty.
    defaults: Option<&'f Map<String, Json>>,
    pub(super) mistakes: Mistakes,
}

impl<'f> FormReader<'f> {
    pub(super) fn new(form: &'f Fields) -> Self {
        Self {
            form,
            defaults: None,
            mistakes: Mistakes::new(),
        }
    }

    /// Reads fields that are left empty from an object, also those in tables.
    pub(super) fn over(self, defaults: &'f Map<String, Json>) -> Self {
        Self {
            defaults: Some(defaults),
            ..self
        }
    }

    /// Notes a mistake. Of several in one field, only the first is shown.
    pub(super) fn note(&mut self, field: &str, mistake: String) {
        self.mistakes.entry(field.to_owned()).or_insert(mistake);
    }

    fn given(&self, name: &str) -> Option<String> {
        let text = match name {
            PAYLOAD => payload(self.form),
            _ => self.form.text(name).unwrap_or_default().trim().to_owned(),
        };
        Some(text).filter(|text| !text.is_empty())
    }
}

impl Reader for FormReader<'_> {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        let Some(text) = self.given(field.name) else {
            let default = self.defaults.and_then(|all| all.get(field.name));
            let default = default.map(|value| read_within(Given::Json(value), &limits));
            return default.and_then(Result::ok).unwrap_or(field.default);
        };
        read_within(Given::Text(&text), &limits).unwrap_or_else(|why| {
            self.note(field.name, why);
            field.default
        })
    }

    fn table<F: fields::Fields>(&mut self, name: &'static str) -> F {
        let text = self.given(name);
        let object: Map<String, Json> = match text.as_deref().map(serde_json::from_str) {
            None => Map::new(),
            Some(Ok(object)) => object,
            Some(Err(error)) => {
                self.note(name, error.to_string());
                Map::new()
            }
        };
        let mut below = JsonReader::new(&object);
        let default = self.defaults.and_then(|all| all.get(name)?.as_object());
        if let Some(default) = default {
            below = below.over(default);
        }
        let read = F::read_fields(&mut below);
        for problem in below.finish() {
            self.note(name, format!("{}: {}", problem.field, problem.message));
        }
        read
    }

    fn problem(&mut self, name: &'static str, _: Json, message: String) {
        self.note(name, message);
    }

    fn spell(&self, name: &str) -> String {
        label_of(name)
    }
}

impl TableReader for FormReader<'_> {
    fn required_field<T: Value>(&mut self, name: &'static str, meaning: &'static str) -> Option<T> {
        let Some(text) = self.given(name) else {
            self.note(name, format!("missing: {meaning}"));
            return None;
        };
        let read = T::read_set(Given::Text(&text));
        read.map_err(|why| self.note(name, why)).ok()
    }

    fn table_if_any<F: fields::Fields>(&mut self, name: &'static str) -> Option<F> {
        self.given(name)?;
        Some(self.table(name))
    }

    fn text_table(&mut self, name: &'static str, _: &'static str) -> Vec<(String, String)> {
        let lines = lines(self.form, name);
        lines
            .map(|(name, value)| (name, value.to_owned()))
            .collect()
    }

    fn entry_problem(&mut self, table: &'static str, _: &str, message: String) {
        self.note(table, message);
    }
}

/// Returns the fields that a refusal is about. `name` is the field with the name of what is created; empty for a change.
pub(super) fn mistakes_of(problem: &Problem, name: &str) -> Mistakes {
    let errors = problem.errors().iter();
    let of_fields: Mistakes = errors
        .map(|error| (error.field.clone(), error.detail.clone()))
        .collect();
    if !of_fields.is_empty() {
        return of_fields;
    }
    let field = match problem.code() {
        ProblemCode::UnknownTopic => "topic",
        ProblemCode::PreconditionFailed | ProblemCode::DeclaredInFile => name,
        _ => "",
    };
    Mistakes::from([(field.to_owned(), problem.detail().to_owned())])
}

/// Returns the payload. Browsers send each end of a line as two characters.
pub(super) fn payload(form: &Fields) -> String {
    let payload = form.text(PAYLOAD).unwrap_or_default();
    payload.replace("\r\n", "\n")
}

/// Returns the entries of a table of texts, one a line, such as the headers of a message. A line without a colon is an entry
/// without a value.
pub(super) fn lines<'f>(
    form: &'f Fields,
    name: &str,
) -> impl Iterator<Item = (String, &'f str)> + use<'f> {
    let lines = form.text(name).unwrap_or_default().lines();
    let lines = lines.filter(|line| !line.trim().is_empty());
    lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        (name.trim().to_ascii_lowercase(), value.trim())
    })
}

/// Returns true for an option that is a box to check.
pub(super) fn is_flag(kind: &str) -> bool {
    kind == FLAG
}

/// Returns the label of a field: `max_attempts` is `Max attempts`.
fn label_of(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    first.to_ascii_uppercase() + &rest.replace('_', " ")
}

/// The inputs of a form, with what was typed and the mistakes in it.
pub(super) struct Inputs<'f> {
    /// The start of the ids of elements.
    pub(super) prefix: &'static str,
    pub(super) form: &'f Fields,
    pub(super) mistakes: &'f Mistakes,
}

impl Inputs<'_> {
    /// Returns the line above the fields: the mistake that is in none of them, or `refused` if there are others.
    pub(super) fn banner(&self, refused: &str) -> Markup {
        html! { @if !self.mistakes.is_empty() {
            p.banner.is-bad role="alert" {
                (sign(Level::Bad))
                @match self.mistakes.get("") {
                    Some(mistake) => span { (visible(mistake)) },
                    None => span { (refused) },
                }
            }
        } }
    }

    /// Returns true if something was typed into a field, or is wrong with it.
    pub(super) fn is_used(&self, name: &str) -> bool {
        self.form.text(name).is_some() || self.mistakes.contains_key(name)
    }

    /// Returns the payload of a message.
    pub(super) fn payload(&self) -> Markup {
        let help = "Any text. A line break counts as one character.";
        self.area(PAYLOAD, help, 5)
    }

    /// Returns the headers of a message.
    pub(super) fn headers(&self) -> Markup {
        let help = "One per line, such as content-type: application/json";
        self.area("headers", help, 2)
    }

    fn area(&self, name: &str, help: &str, rows: u8) -> Markup {
        self.field(name, help, |id, described, is_wrong| html! {
            // A line end after the tag is not part of the text.
            textarea id=(id) name=(name) rows=(rows) spellcheck="false" aria-describedby=(described) aria-invalid=[is_wrong.then_some("true")] { "\n" (self.form.text(name).unwrap_or_default()) }
        })
    }

    /// Returns a field as it is described.
    pub(super) fn input(&self, field: &Description) -> Markup {
        let mut help = field.meaning.clone();
        if !field.allowed.is_empty() {
            help += &format!(" Allowed: {}.", field.allowed.trim_end_matches('.'));
        }
        let help = help.replace('`', "");
        let value = self.form.text(field.name);
        let default = match &field.default {
            Some(Json::String(text)) if !text.is_empty() && text != UNSET => Some(text),
            _ => None,
        };
        self.field(field.name, &help, |id, described, is_wrong| html! {
            @if is_flag(field.kind) {
                input id=(id) name=(field.name) type="checkbox" value="true" checked[value == Some("true")] aria-describedby=(described);
            } @else {
                input id=(id) name=(field.name) value=(value.unwrap_or_default()) placeholder=[default] autocomplete="off" spellcheck="false"
                    required[field.required] aria-describedby=(described) aria-invalid=[is_wrong.then_some("true")];
            }
        })
    }

    /// Returns checkboxes, each from the name of its field, its label and its meaning. `name` is that of the whole set.
    pub(super) fn choices(&self, name: &str, all: &[(String, &str, &str)]) -> Markup {
        let id = format!("{}-{name}", self.prefix);
        let mistake = self.mistakes.get(name);
        html! {
            fieldset.field.choice aria-describedby=[mistake.map(|_| format!("{id}-mistake"))] {
                legend { (label_of(name)) }
                @for (field, label, meaning) in all {
                    label { input name=(field) type="checkbox" value="true" checked[self.form.text(field).is_some()]; span { (label) " " span.muted { (meaning) } } }
                }
                @if let Some(mistake) = mistake { p.mistake id=(format!("{id}-mistake")) { (visible(mistake)) } }
            }
        }
    }

    /// Returns a field with its label, its mistake and its help. `control` gets its id, and the ids of what describes it.
    fn field(
        &self,
        name: &str,
        help: &str,
        control: impl FnOnce(&str, &str, bool) -> Markup,
    ) -> Markup {
        let id = format!("{}-{name}", self.prefix);
        let mistake = self.mistakes.get(name);
        let described = match mistake {
            Some(_) => format!("{id}-mistake {id}-help"),
            None => format!("{id}-help"),
        };
        html! {
            div.field {
                label for=(id) { (label_of(name)) }
                (control(&id, &described, mistake.is_some()))
                @if let Some(mistake) = mistake { p.mistake id=(format!("{id}-mistake")) { (visible(mistake)) } }
                p.muted.help id=(format!("{id}-help")) { (help) }
            }
        }
    }
}
