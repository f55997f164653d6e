//! The schemas of this crate's types in OpenAPI descriptions, with the feature `openapi`.
//!
//! A struct derives its schema where it is defined. This module covers the types that macros define or that serialize as
//! another type. It knows no routes.

use serde_json::{Value as Json, json};
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{AdditionalProperties, Object, ObjectBuilder, Type};
use utoipa::openapi::{Required, Schema};

pub use utoipa;

use crate::durability::Durability;
use crate::fields::{Describer, Description, Fields, Size, plain};
use crate::message::Headers;
use crate::names::Shard;
use crate::state::State;
use crate::time::UnixMs;
use crate::topic::Rate;

/// Returns the schema of a text that is one of `words`.
pub fn one_of(words: impl IntoIterator<Item = &'static str>) -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(words))
        .build()
}

/// Returns the schema of the state of a message in one group, as `GroupCopy::state` returns it.
pub fn copy_states() -> Object {
    let states = State::ALL.iter().map(|state| state.as_str());
    one_of(states.chain(["done", "unknown"]))
}

/// Returns the schema of a text, with its meaning.
pub fn text(meaning: &str) -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(meaning))
        .build()
}

/// Returns the schema of a whole number that is not negative, with its meaning.
pub fn count(meaning: &str) -> Object {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0))
        .description(Some(meaning))
        .build()
}

/// Returns the schema of an object with these fields, as they are read.
///
/// # Panics
/// If the schema of a field is not that of a value.
pub fn object<F: Fields>(meaning: &str, required: &[&str]) -> Object {
    let read = |from: &mut Describer| drop(F::read_fields(from));
    object_of(meaning, required, read)
}

/// Returns the schema of an object with the fields that a function reads. Those without a default are required, and so are the
/// others that `required` names.
///
/// # Panics
/// As [`object`].
pub fn object_of(meaning: &str, required: &[&str], read: impl FnOnce(&mut Describer)) -> Object {
    let mut described = Describer::default();
    read(&mut described);
    let object = ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(meaning.trim()))
        .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
    let mut object = with_fields(object, &described.fields);
    let without_default = described.fields.iter().filter(|field| field.required);
    for name in without_default.map(|field| &field.name).chain(required) {
        object = object.required(*name);
    }
    // The value of one field may decide which others there are.
    let table = || ObjectBuilder::new().schema_type(Type::Object);
    for (name, fields) in &described.tables {
        object = object.property(*name, with_fields(table(), fields));
    }
    object.build()
}

fn with_fields(object: ObjectBuilder, fields: &[Description]) -> ObjectBuilder {
    fields.iter().fold(object, |object, field| {
        let mut schema = value(field);
        schema["description"] = meaning_of(field).into();
        object.property(field.name, to_schema(schema))
    })
}

/// Returns the parameters of a query with these fields, as they are read.
///
/// # Panics
/// If the schema of a field is not that of a value.
pub fn query<F: Fields>() -> Vec<Parameter> {
    let parameter = |field: Description| {
        ParameterBuilder::new()
            .name(field.name)
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some(meaning_of(&field)))
            .schema(Some(to_schema(value(&field))))
            .build()
    };
    Description::all::<F>().into_iter().map(parameter).collect()
}

/// Returns the schema of a field, with its default unless the default means that the field is absent.
fn value(field: &Description) -> Json {
    let mut schema = field.schema.clone();
    // A bound that is that of the type says nothing, and is more than many languages can hold.
    if schema["maximum"] == u64::MAX
        && let Some(schema) = schema.as_object_mut()
    {
        schema.remove("maximum");
    }
    let is_off =
        |default: &&Json| [json!("none"), json!(false), json!([]), json!({})].contains(default);
    if let Some(default) = field.default.as_ref().filter(|default| !is_off(default)) {
        schema["default"] = default.clone();
    }
    schema
}

/// Returns the meaning of a field with its bounds and its default, for pages that do not show schemas.
fn meaning_of(field: &Description) -> String {
    let mut text = field.meaning.clone();
    match (field.kind, field.allowed.as_str()) {
        // The pattern of a name says nothing to people; words are in the schema.
        (_, "") => {}
        ("time" | "duration" | "integer", allowed) => text += &format!(" Allowed: {allowed}."),
        _ => {}
    }
    if let Some(default) = value(field).get("default") {
        text += &format!(" Default: `{}`.", plain(default));
    }
    text
}

fn to_schema(schema: Json) -> Schema {
    serde_json::from_value(schema).expect("the schema of a value")
}

/// Describes the fields of a struct as parameters of a query.
#[doc(hidden)]
#[macro_export]
macro_rules! openapi_query {
    ($type:ident) => {
        impl $crate::openapi::utoipa::IntoParams for $type {
            fn into_params(
                _: impl Fn() -> Option<$crate::openapi::utoipa::openapi::path::ParameterIn>,
            ) -> Vec<$crate::openapi::utoipa::openapi::path::Parameter> {
                $crate::openapi::query::<$type>()
            }
        }
    };
}

/// Describes a type in OpenAPI by an expression.
#[doc(hidden)]
#[macro_export]
macro_rules! openapi_schema {
    ($type:ident, $schema:expr) => {
        $crate::openapi_schema!($type, stringify!($type), $schema);
    };
    ($type:ident, $name:expr, $schema:expr) => {
        impl $crate::openapi::utoipa::PartialSchema for $type {
            fn schema()
            -> $crate::openapi::utoipa::openapi::RefOr<$crate::openapi::utoipa::openapi::Schema>
            {
                $schema.into()
            }
        }

        impl $crate::openapi::utoipa::ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
        }
    };
}

openapi_schema!(Shard, count("The index of a shard of a topic"));
openapi_schema!(Size, count("A number of bytes"));
openapi_schema!(UnixMs, count("A time in ms since 1970-01-01 UTC"));
openapi_schema!(Rate, text("A rate such as 100/s, 6000/m or 5/h"));
openapi_schema!(Durability, text("A durability: memory, aof or replicas:N"));
openapi_schema!(
    Headers,
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(ObjectBuilder::new().schema_type(Type::String)))
        .description(Some("The headers of a message, with names in lower case"))
        .build()
);
