//! The options of a message as arguments: `max_attempts` is `--max-attempts`.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use lisa_core::fields::{Description, Field, Fields, Given, Limits, Reader, Value, read_within};
use lisa_core::message::MessageOptions;
use serde_json::Value as Json;

/// The kind of an option that is a flag without a value.
const FLAG: &str = bool::KIND;

/// The options of a message.
#[derive(Debug)]
pub(super) struct OptionArgs(MessageOptions);

impl From<OptionArgs> for MessageOptions {
    fn from(args: OptionArgs) -> Self {
        args.0
    }
}

impl Args for OptionArgs {
    fn augment_args(command: Command) -> Command {
        command.args(Description::all::<MessageOptions>().iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(option: &Description) -> Arg {
    let mut help = option.meaning.trim_end_matches('.').to_owned();
    if !option.allowed.is_empty() {
        help = format!("{help} [allowed: {}]", option.allowed);
    }
    let argument = Arg::new(option.name).long(kebab(option.name)).help(help);
    let argument = match option.name {
        "deliver_at" => argument.visible_alias("at"),
        _ => argument,
    };
    match option.kind {
        FLAG => argument.action(ArgAction::SetTrue),
        // A delay of -5s is a wrong value rather than an unknown flag.
        "duration" | "integer" => argument.allow_hyphen_values(true),
        _ => argument,
    }
    .value_name(option.kind.replace(' ', "_").to_uppercase())
}

impl FromArgMatches for OptionArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut reader = ArgReader {
            matches,
            problems: Vec::new(),
        };
        let options = MessageOptions::read_fields(&mut reader);
        if reader.problems.is_empty() {
            return Ok(Self(options));
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
        unreachable!("an option is one argument")
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
