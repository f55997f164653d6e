//! Fields that are declared once: the settings of a topic or a process, and the options of a message.
//!
//! [`fields!`](crate::fields!) declares a struct with the default, the bounds and the meaning of each field. A [`Reader`]
//! fills it from a source: a configuration file, a line of JSON, the headers of a request, the arguments of a command.
//! Checks, references and schemas come from the same declaration. Nothing here opens a source.

mod json;
mod text;
mod value;

use std::ops::{Bound, RangeBounds};

use serde::Serialize;
use serde_json::Value as Json;

pub use json::JsonReader;
pub use text::TextReader;
pub use value::{Given, Size, Value, optional_text, text_schema};

/// The kind of a table whose values are texts.
pub const TEXT_TABLE: &str = "table of strings";

/// A field before it is read.
#[derive(Clone, Copy, Debug)]
pub struct Field<T> {
    /// Its name, in snake case.
    pub name: &'static str,
    /// Its meaning, in one or two sentences.
    pub meaning: &'static str,
    /// Its value if no source has it.
    pub default: T,
}

impl<T> Field<T> {
    /// Creates a field. Removes the `r#` of a raw identifier, such as `r#for`, from the name.
    pub const fn new(name: &'static str, default: T, meaning: &'static str) -> Self {
        let name = match name.as_bytes() {
            [b'r', b'#', word @ ..] => match str::from_utf8(word) {
                Ok(word) => word,
                Err(_) => name,
            },
            _ => name,
        };
        Self {
            name,
            meaning,
            default,
        }
    }
}

/// A source of fields. A wrong value is recorded as a problem and read as the default, so that all problems are found.
pub trait Reader {
    /// Reads one field and checks its limits.
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T;

    /// Reads the fields of a table below.
    fn table<F: Fields>(&mut self, name: &'static str) -> F;

    /// Records a problem with a field that has been read, for rules that need more than one field.
    fn problem(&mut self, name: &'static str, value: Json, message: String);

    /// Returns the name of a field as this source spells it.
    fn spell(&self, name: &str) -> String {
        name.to_owned()
    }
}

/// A source of fields that has tables, such as a configuration file or a JSON object.
pub trait TableReader: Reader {
    /// Reads a field that has no default. A missing one is a problem.
    fn required_field<T: Value>(&mut self, name: &'static str, meaning: &'static str) -> Option<T>;

    /// Reads the fields of a table below; `None` if it is missing.
    fn table_if_any<F: Fields>(&mut self, name: &'static str) -> Option<F>;

    /// Reads a table whose keys are names and whose values are texts.
    fn text_table(&mut self, name: &'static str, meaning: &'static str) -> Vec<(String, String)>;

    /// Records a problem with an entry of such a table.
    fn entry_problem(&mut self, table: &'static str, name: &str, message: String);
}

/// A struct that a [`Reader`] can fill.
pub trait Fields: Sized {
    /// Reads all fields.
    fn read_fields(from: &mut impl Reader) -> Self;
}

/// A problem with a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value}: {message}")]
pub struct FieldProblem {
    /// The field, with the tables that it is in, e.g. `retry.base`.
    pub field: String,
    /// The rejected value, as JSON.
    pub value: String,
    /// The mistake and the allowed values.
    pub message: String,
}

/// The values that a field allows, among those of its type.
pub trait Limits<T> {
    /// Returns true if the value is allowed.
    fn allow(&self, value: &T) -> bool;

    /// Returns the allowed values as text, e.g. `1s to 12h`. `None` means all.
    fn text(&self) -> Option<String>;

    /// Returns the lowest and the highest allowed value as JSON.
    fn ends(&self) -> (Option<Json>, Option<Json>);
}

/// All values of a type.
#[derive(Clone, Copy, Debug)]
pub struct Any;

impl<T> Limits<T> for Any {
    fn allow(&self, _: &T) -> bool {
        true
    }

    fn text(&self) -> Option<String> {
        None
    }

    fn ends(&self) -> (Option<Json>, Option<Json>) {
        (None, None)
    }
}

/// The values between two bounds. For an option, the bounds are those of a value that is set; for a list, of each item.
#[derive(Clone, Copy, Debug)]
pub struct Within<B> {
    low: Option<B>,
    high: Option<B>,
}

/// Returns the limits that a range describes. An exclusive end is not supported.
pub fn within<B: Clone>(range: impl RangeBounds<B>) -> Within<B> {
    let end = |bound: Bound<&B>| match bound {
        Bound::Included(end) | Bound::Excluded(end) => Some(end.clone()),
        Bound::Unbounded => None,
    };
    Within {
        low: end(range.start_bound()),
        high: end(range.end_bound()),
    }
}

impl<B: Value + PartialOrd, T: Bounded<B>> Limits<T> for Within<B> {
    fn allow(&self, value: &T) -> bool {
        value.all(|value| {
            self.low.as_ref().is_none_or(|low| low <= value)
                && self.high.as_ref().is_none_or(|high| value <= high)
        })
    }

    fn text(&self) -> Option<String> {
        let plain = |end: &B| plain(&end.show());
        match (&self.low, &self.high) {
            (Some(low), Some(high)) => Some(format!("{} to {}", plain(low), plain(high))),
            (Some(low), None) => Some(format!("at least {}", plain(low))),
            (None, Some(high)) => Some(format!("at most {}", plain(high))),
            (None, None) => None,
        }
    }

    fn ends(&self) -> (Option<Json>, Option<Json>) {
        let show = |end: &Option<B>| end.as_ref().map(Value::show);
        (show(&self.low), show(&self.high))
    }
}

/// A value that bounds of type `B` apply to.
pub trait Bounded<B> {
    /// Returns true if `check` holds for each value in it.
    fn all(&self, check: impl Fn(&B) -> bool) -> bool;
}

impl<B: PartialOrd> Bounded<B> for B {
    fn all(&self, check: impl Fn(&B) -> bool) -> bool {
        check(self)
    }
}

impl<B: PartialOrd> Bounded<B> for Option<B> {
    fn all(&self, check: impl Fn(&B) -> bool) -> bool {
        self.iter().all(check)
    }
}

impl<B: PartialOrd> Bounded<B> for Vec<B> {
    fn all(&self, check: impl Fn(&B) -> bool) -> bool {
        self.iter().all(check)
    }
}

/// Returns the message for a value that its limits do not allow.
pub fn refusal<T>(value: &T, limits: &impl Limits<T>) -> Option<String> {
    let allowed = limits.text()?;
    (!limits.allow(value)).then(|| format!("must be {allowed}"))
}

/// Reads a value where a source cannot unset it, and checks its limits.
///
/// # Errors
/// A text that says what is allowed.
pub fn read_within<T: Value>(given: Given<'_>, limits: &impl Limits<T>) -> Result<T, String> {
    let value = T::read_set(given)?;
    match refusal(&value, limits) {
        Some(message) => Err(message),
        None => Ok(value),
    }
}

/// Checks the fields of a struct that was not read from a source.
///
/// # Errors
/// All problems.
///
/// # Panics
/// If it is not an object as JSON.
pub fn check_all<F: Fields + Serialize>(fields: &F) -> Result<(), Vec<FieldProblem>> {
    let json = serde_json::to_value(fields).expect("settings are JSON");
    let mut reader = JsonReader::new(json.as_object().expect("a struct is an object"));
    F::read_fields(&mut reader);
    match reader.problems() {
        problems if problems.is_empty() => Ok(()),
        problems => Err(problems),
    }
}

/// The description of a field, for references and schemas.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Its name, in snake case.
    pub name: &'static str,
    /// Its type, e.g. `duration`.
    pub kind: &'static str,
    /// The allowed values; empty if they are all of the type.
    pub allowed: String,
    /// Its default, as it can be written; `None` if it has none.
    pub default: Option<Json>,
    /// True if it must be set.
    pub required: bool,
    /// Its meaning.
    pub meaning: String,
    /// Its JSON Schema.
    pub schema: Json,
}

impl Description {
    /// Describes a field.
    pub fn of<T: Value>(field: &Field<T>, limits: &impl Limits<T>) -> Self {
        let default = Some(field.default.show());
        Self::new::<T>(field.name, default, field.meaning, limits)
    }

    /// Describes a field that may be missing.
    pub fn optional<T: Value>(name: &'static str, meaning: &'static str) -> Self {
        Self::new::<T>(name, None, meaning, &Any)
    }

    /// Describes a table whose values are texts.
    pub fn text_table(name: &'static str, meaning: &'static str) -> Self {
        Self {
            kind: TEXT_TABLE,
            default: Some(Json::Object(serde_json::Map::new())),
            schema: serde_json::json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            ..Self::optional::<String>(name, meaning)
        }
    }

    /// Describes a field that has no default.
    pub fn required<T: Value>(name: &'static str, meaning: &'static str) -> Self {
        Self {
            required: true,
            ..Self::new::<T>(name, None, meaning, &Any)
        }
    }

    fn new<T: Value>(
        name: &'static str,
        default: Option<Json>,
        meaning: &'static str,
        limits: &impl Limits<T>,
    ) -> Self {
        let (low, high) = limits.ends();
        let mut schema = T::schema();
        for (key, end) in [("minimum", low), ("maximum", high)] {
            // JSON Schema compares only numbers.
            if let Some(end) = end.filter(Json::is_number) {
                schema[key] = end;
            }
        }
        let meaning: Vec<_> = meaning.split_whitespace().collect();
        Self {
            name,
            kind: T::KIND,
            allowed: limits.text().unwrap_or_else(T::allowed),
            default,
            required: false,
            meaning: meaning.join(" "),
            schema,
        }
    }
}

impl Description {
    /// Describes the fields of a struct, without the tables below.
    pub fn all<F: Fields>() -> Vec<Self> {
        Describer::of::<F>().fields
    }

    /// Describes the fields of each table below a struct. If the fields of a table depend on its values, describes those of the
    /// default.
    pub fn tables<F: Fields>() -> Vec<(&'static str, Vec<Self>)> {
        Describer::of::<F>().tables
    }
}

/// Reads nothing: collects the descriptions.
#[derive(Debug, Default)]
pub struct Describer {
    /// The fields.
    pub fields: Vec<Description>,
    /// The fields of each table below. If they depend on its values, those of the default.
    pub tables: Vec<(&'static str, Vec<Description>)>,
}

impl Describer {
    fn of<F: Fields>() -> Self {
        let mut all = Self::default();
        F::read_fields(&mut all);
        all
    }
}

impl Reader for Describer {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        self.fields.push(Description::of(&field, &limits));
        field.default
    }

    fn table<F: Fields>(&mut self, name: &'static str) -> F {
        let mut below = Self::default();
        let read = F::read_fields(&mut below);
        self.tables.push((name, below.fields));
        read
    }

    fn problem(&mut self, _: &'static str, _: Json, _: String) {}
}

impl TableReader for Describer {
    fn required_field<T: Value>(&mut self, name: &'static str, meaning: &'static str) -> Option<T> {
        self.fields.push(Description::required::<T>(name, meaning));
        None
    }

    fn table_if_any<F: Fields>(&mut self, name: &'static str) -> Option<F> {
        Some(self.table(name))
    }

    fn text_table(&mut self, name: &'static str, meaning: &'static str) -> Vec<(String, String)> {
        self.fields.push(Description::text_table(name, meaning));
        Vec::new()
    }

    fn entry_problem(&mut self, _: &'static str, _: &str, _: String) {}
}

/// Returns a value as people write it: a string without its quotes.
pub fn plain(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Declares a struct whose fields a [`Reader`](crate::fields::Reader) can read.
///
/// `name: Type = default;` or `name: Type = default, in low..=high;` declares a field, `name: Type;` a table below. Further
/// attributes of a field are in brackets before its name. `check` names a function for rules that need several fields.
/// `schema = "Name"` after the name of the struct gives it an OpenAPI schema of that name (feature `openapi`), and
/// `required = field` marks a required field. `query` describes the fields as query parameters instead.
///
/// `..name: Type;` after the fields includes those of another struct: they are read, checked and described as if they were
/// declared here.
#[macro_export]
macro_rules! fields {
    (
        $(#[$($attribute:tt)*])*
        $visible:vis struct $struct:ident, schema = $schema:literal
        $(, required = $required:ident)? $(, check = $check:path)? { $($fields:tt)+ }
    ) => {
        $crate::fields! {
            $(#[$($attribute)*])*
            $visible struct $struct $(, check = $check)? { $($fields)+ }
        }

        $crate::openapi_schema!($struct, $schema, $crate::openapi::object::<$struct>(
            concat!($($crate::fields!(@doc $($attribute)*)),*),
            &[$(stringify!($required))?],
        ));
    };
    (
        $(#[$attribute:meta])*
        $visible:vis struct $struct:ident, query $(, check = $check:path)? { $($fields:tt)+ }
    ) => {
        $crate::fields! {
            $(#[$attribute])*
            $visible struct $struct $(, check = $check)? { $($fields)+ }
        }

        $crate::openapi_query!($struct);
    };
    (@doc doc = $doc:literal) => { $doc };
    (@doc $($other:tt)*) => { "" };
    (
        $(#[$attribute:meta])*
        $visible:vis struct $struct:ident $(, check = $check:path)? {
            $(
                $(#[doc = $doc:literal])+
                $([$extra:meta])*
                $name:ident: $type:ty $(= $default:expr $(, in $bounds:expr)?)?;
            )+
            $(..$part:ident: $part_type:ty;)*
        }
    ) => {
        $(#[$attribute])*
        $visible struct $struct {
            $(
                $(#[doc = $doc])+
                $(#[doc = concat!("\n\nDefault: `", stringify!($default), "`.")]
                $(#[doc = concat!(" Allowed: `", stringify!($bounds), "`.")])?)?
                $(#[$extra])*
                pub $name: $type,
            )+
            $(
                #[doc = concat!("The fields of [`", stringify!($part_type), "`].")]
                pub $part: $part_type,
            )*
        }

        impl Default for $struct {
            fn default() -> Self {
                Self {
                    $($name: $crate::fields!(@default $type $(, $default)?),)+
                    $($part: <$part_type>::default(),)*
                }
            }
        }

        impl $crate::fields::Fields for $struct {
            fn read_fields(from: &mut impl $crate::fields::Reader) -> Self {
                let read = Self {
                    $($name: $crate::fields!(
                        @read from, $name, concat!($($doc),+) $(, $default $(, $bounds)?)?
                    ),)+
                    $($part: <$part_type as $crate::fields::Fields>::read_fields(from),)*
                };
                $($check(&read, from);)?
                read
            }
        }
    };
    (@default $type:ty) => { <$type>::default() };
    (@default $type:ty, $default:expr) => { $default };
    (@read $from:ident, $name:ident, $meaning:expr) => {
        $from.table(stringify!($name))
    };
    (@read $from:ident, $name:ident, $meaning:expr, $default:expr) => {
        $crate::fields!(@field $from, $name, $meaning, $default, $crate::fields::Any)
    };
    (@read $from:ident, $name:ident, $meaning:expr, $default:expr, $bounds:expr) => {
        $crate::fields!(@field $from, $name, $meaning, $default, $crate::fields::within($bounds))
    };
    (@field $from:ident, $name:ident, $meaning:expr, $default:expr, $limits:expr) => {
        $from.read($crate::fields::Field::new(stringify!($name), $default, $meaning), $limits)
    };
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use serde_json::json;

    use super::*;

    fields! {
        #[derive(Debug, PartialEq)]
        struct Times, check = ordered {
            /// The first time.
            from: Option<u32> = None;
            /// The last time.
            to: Option<u32> = None, in ..=10;
        }
    }

    fn ordered(times: &Times, from: &mut impl Reader) {
        if times.from > times.to {
            from.problem("from", times.from.show(), "must be before to".to_owned());
        }
    }

    fields! {
        #[derive(Debug, PartialEq)]
        struct Search {
            /// The most results.
            limit: u32 = 7;
            ..times: Times;
        }
    }

    #[test]
    fn included_fields_are_read_beside_those_of_the_struct() {
        let json = json!({ "limit": 5, "to": 9 });
        let mut reader = JsonReader::new(json.as_object().unwrap());
        let read = Search::read_fields(&mut reader);
        assert_eq!(reader.finish(), []);
        let times = Times {
            from: None,
            to: Some(9),
        };
        assert_eq!(read, Search { limit: 5, times });
        let pairs = ["from", "limit"].map(|name| (Cow::from(name), Cow::from("3")));
        let mut reader = TextReader::new(&pairs);
        let read = Search::read_fields(&mut reader);
        // The check of the included fields runs, too.
        assert_eq!((read.limit, read.times.from), (3, Some(3)));
        assert_eq!(reader.finish()[0].field, "from");
        assert_eq!(Search::default().limit, 7);
    }

    #[test]
    fn problems_and_descriptions_name_included_fields_without_a_prefix() {
        let json = json!({ "to": 11, "form": 1 });
        let mut reader = JsonReader::new(json.as_object().unwrap());
        Search::read_fields(&mut reader);
        let [limit, unknown] = &reader.finish()[..] else {
            panic!("two problems");
        };
        assert_eq!((&*limit.field, &*unknown.field), ("to", "form"));
        assert_eq!(
            unknown.message,
            "unknown field, did you mean from? Known fields: limit, from, to"
        );
        let described = Description::all::<Search>();
        let names: Vec<_> = described.iter().map(|field| field.name).collect();
        assert_eq!(names, ["limit", "from", "to"]);
        assert_eq!(described[2].allowed, "at most 10");
        assert_eq!(described[2].meaning, "The last time.");
    }
}
