//! Settings that are declared once: the fields of a struct, and how each is read from a table of the configuration.

#[cfg(feature = "process")]
use crate::config::table::Table;

/// A struct that is read from a table.
#[cfg(feature = "process")]
pub(crate) trait Settings: Sized {
    /// Reads all keys. Returns `None` if a value is not usable; the problems are then recorded in the table.
    fn read(table: &mut Table<'_>) -> Option<Self>;
}

/// Declares a struct that a `Table` fills. The comment of a field is the meaning of its key.
///
/// A word before the name of a field says how it is read:
/// - `required`: a key that must be present.
/// - `optional`: a key that may be missing; the type is an `Option`.
/// - `default`: a key with its default after `=`, and optional bounds after `in`.
/// - `secret`: a key, or the file that the key `…_file` names.
/// - `file`: the path of a file that is read when the sink or source connects.
/// - `path`: the path of a file that is read later.
/// - `nested`: the keys of another such struct, in the same table.
/// - `part`: keys that the function after `by` reads. The function receives the table and the comment.
///
/// `check` after a field names a function that checks its value. After the name of the struct, it names one that checks
/// all values together.
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $struct:ident $(, check = $check_all:path)? {
            $(
                $(#[doc = $doc:literal])+
                $how:ident $name:ident: $type:ty $(= $value:expr $(, in $bounds:expr)?)? $(, by $read:path)? $(, check $check:path)?;
            )+
        }
    ) => {
        $(#[$attribute])*
        $visible struct $struct {
            $(
                $(#[doc = $doc])+
                $(#[doc = concat!("\n\nDefault: `", stringify!($value), "`.")]
                $(#[doc = concat!(" Allowed: `", stringify!($bounds), "`.")])?)?
                pub $name: $type,
            )+
        }

        #[cfg(feature = "process")]
        impl $crate::settings::Settings for $struct {
            fn read(table: &mut $crate::config::table::Table<'_>) -> Option<Self> {
                $(let $name: Option<$type> = $crate::settings::settings!(
                    @$how table, $name, concat!($($doc),+) $(, $value $(, $bounds)?)? $(, $read)?
                );)+
                $($crate::settings::settings!(@check $how table, $name $(, $check)?);)+
                let read = Self { $($name: $name?,)+ };
                $($check_all(&read, table);)?
                Some(read)
            }
        }
    };

    (@required $table:ident, $name:ident, $meaning:expr) => {
        $table.required(stringify!($name), $meaning)
    };
    (@optional $table:ident, $name:ident, $meaning:expr) => {
        Some($table.optional(stringify!($name), $meaning))
    };
    (@default $table:ident, $name:ident, $meaning:expr, $value:expr) => {
        $crate::settings::settings!(@field $table, $name, $meaning, $value, lisa_core::fields::Any)
    };
    (@default $table:ident, $name:ident, $meaning:expr, $value:expr, $bounds:expr) => {
        $crate::settings::settings!(@field $table, $name, $meaning, $value, lisa_core::fields::within($bounds))
    };
    (@field $table:ident, $name:ident, $meaning:expr, $value:expr, $limits:expr) => {{
        let field = lisa_core::fields::Field::new(stringify!($name), $value, $meaning);
        Some(lisa_core::fields::Reader::read($table, field, $limits))
    }};
    (@secret $table:ident, $name:ident, $meaning:expr) => {
        Some($crate::config::secret_file::one(
            $table,
            stringify!($name),
            $meaning,
            concat!(stringify!($name), "_file"),
            concat!("A file whose only line is the value of `", stringify!($name), "`."),
        ))
    };
    (@file $table:ident, $name:ident, $meaning:expr) => {
        Some($crate::config::secret_file::path($table, stringify!($name), $meaning))
    };
    (@path $table:ident, $name:ident, $meaning:expr) => {
        Some($table.file(stringify!($name), $meaning))
    };
    (@nested $table:ident, $name:ident, $meaning:expr) => {
        $crate::settings::Settings::read($table)
    };
    (@part $table:ident, $name:ident, $meaning:expr, $read:path) => {
        $read($table, $meaning)
    };

    (@check $how:ident $table:ident, $name:ident) => {};
    (@check optional $table:ident, $name:ident, $check:path) => {
        if let Some(Some(value)) = &$name
            && let Err(problem) = $check(value)
        {
            $table.reject(stringify!($name), problem);
        }
    };
    (@check $how:ident $table:ident, $name:ident, $check:path) => {
        if let Some(value) = &$name
            && let Err(problem) = $check(value)
        {
            $table.reject(stringify!($name), problem);
        }
    };
}
pub(crate) use settings;
