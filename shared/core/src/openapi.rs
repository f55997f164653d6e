//! The schemas of this crate's types in OpenAPI descriptions, with the feature `openapi`.
//!
//! A struct derives its schema where it is defined. This module covers the types that macros define or that serialize as
//! another type. It knows no routes.

use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

pub use utoipa;

use crate::durability::Durability;
use crate::fields::Size;
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

/// Describes a type in OpenAPI by an expression.
#[doc(hidden)]
#[macro_export]
macro_rules! openapi_schema {
    ($type:ident, $schema:expr) => {
        impl $crate::openapi::utoipa::PartialSchema for $type {
            fn schema()
            -> $crate::openapi::utoipa::openapi::RefOr<$crate::openapi::utoipa::openapi::Schema>
            {
                $schema.into()
            }
        }

        impl $crate::openapi::utoipa::ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
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
