//! Declared fields as arguments: `max_attempts` is `--max-attempts`.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use lisa_core::fields::{Description, Field, Fields, Given, Limits, Reader, Value, read_within};
use serde_json::Value as Json;

/// The kind of a field that is a flag without a value.
const FLAG: &str = bool::KIND;

/// Arguments for each field of a struct without tables.
#[derive(Clone, Debug)]
pub struct FieldArgs<F>(pub F);

impl<F: Fields> Args for FieldArgs<F> {
    fn augment_args(command: Command) -> Command {
        command.args(Description::all::<F>().iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(field: &Description) -> Arg {
    let mut help = field.meaning.trim_end_matches('.').replace('`', "");
    if !field.allowed.is_empty() {
        help = format!("{help} [allowed: {}]", field.allowed);
    }
    let argument = Arg::new(field.name).long(kebab(field.name)).help(help);
    let argument = match field.kind {
        FLAG => argument.action(ArgAction::SetTrue),
        // A delay of -5s is a wrong value rather than an unknown flag.
        "duration" | "integer" => argument.allow_hyphen_values(true),
        _ => argument,
    };
    // The name of a field says more than that it is one of some words.
    let value = match field.schema.get("enum") {
        Some(_) => field.name,
        None => field.kind,
    };
    argument.value_name(value.replace(' ', "_").to_uppercase())
}

impl<F: Fields> FromArgMatches for FieldArgs<F> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut reader = ArgReader {
            matches,
            problems: Vec::new(),
        };
        let fields = F::read_fields(&mut reader);
        if reader.problems.is_empty() {
            return Ok(Self(fields));
        }
        let problems = reader.problems.join("\n");
        Err(Error::raw(ErrorKind::ValueValidation, problems))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

struct ArgReader<'m> {
    matches: &'m ArgMatches,
    problems: Vec<String>,
}

impl Reader for ArgReader<'_> {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        let text = match T::KIND {
            FLAG => self.matches.get_flag(field.name).then_some("true"),
            _ => self
                .matches
                .get_one::<String>(field.name)
                .map(String::as_str),
        };
        let Some(text) = text else {
            return field.default;
        };
        read_within(Given::Text(text), &limits).unwrap_or_else(|why| {
            self.problem(field.name, text.into(), why);
            field.default
        })
    }

    fn table<F: Fields>(&mut self, _: &'static str) -> F {
        unreachable!("a field is one argument")
    }

    fn problem(&mut self, name: &'static str, value: Json, message: String) {
        let value = lisa_core::fields::plain(&value);
        self.problems.push(format!(
            "invalid value '{value}' for '{}': {message}",
            self.spell(name)
        ));
    }

    fn spell(&self, name: &str) -> String {
        format!("--{}", kebab(name))
    }
}

fn kebab(name: &str) -> String {
    name.replace('_', "-")
}
