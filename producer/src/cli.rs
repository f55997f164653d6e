//! The command line of `lisa-producer`: the service, and verbs that call Redis directly.
//!
//! Parses arguments and prints outcomes. The library implements the operations.

mod commands;
mod import;
mod service;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgGroup, Args, CommandFactory, Parser, Subcommand};
use lisa_core::broker::Broker;
use lisa_core::message::{MessageId, MessageOptions, OrderingKey};
use lisa_core::time::{InvalidTime, UnixMs, When, parse_duration};
use lisa_core::topic::Topic;
use lisa_service::cli::{ConfigVerb, FieldArgs, GlobalFlags, Output, ProgramVerb};
use lisa_service::config::{Config, SinkSecrets};
use lisa_service::role::{self, Flags, Program, StartError};

use crate::error::SendError;
use crate::message_ref::MessageRef;
use crate::producer::{Producer, ProducerOptions};

/// Accept messages for later delivery over HTTP, or send, cancel and reschedule them from the command line
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 69 Redis unavailable, 78 wrong configuration
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(flatten)]
    flags: GlobalFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the HTTP interface and take messages off the configured sources until SIGTERM or SIGINT
    Run {
        /// Address of the listener; overrides producer.listen
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<String>,
        /// Run on a Redis that may evict keys and thereby lose messages
        #[arg(long)]
        allow_eviction: bool,
    },
    #[command(flatten)]
    Message(MessageVerb),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    #[command(flatten)]
    Program(ProgramVerb),
}

/// The verbs for messages, which call Redis directly and exit. `lisa-manager` has them as well.
#[derive(Debug, Subcommand)]
pub enum MessageVerb {
    /// Send one message, due now unless --delay or --deliver-at is set
    Send(Box<SendArgs>),
    /// Cancel a message that has not been delivered yet, or all messages of an ordering key
    ///
    /// Messages that are ready, in flight or in garbage (dead letters) do not change, and the exit code is 1. With --output
    /// json, it also prints the headers and the payload of the message.
    #[command(override_usage = usage("cancel [OPTIONS] <TOPIC> <ID|--key <KEY>>"))]
    Cancel(Target),
    /// Set the due time of a message, or of all messages of an ordering key
    ///
    /// Messages that are ready, in flight or in garbage (dead letters) do not change, and the exit code is 1.
    #[command(
        group = ArgGroup::new("due").required(true).args(["delay", "deliver_at"]),
        override_usage = usage("reschedule [OPTIONS] <TOPIC> <ID|--key <KEY>> <--delay <DURATION>|--deliver-at <TIME>>")
    )]
    Reschedule {
        /// The messages.
        #[command(flatten)]
        target: Target,
        /// The new due time.
        #[command(flatten)]
        due: Due,
    },
    /// Make a message, or all messages of an ordering key, due now
    ///
    /// Messages that are ready, in flight or in garbage (dead letters) do not change, and the exit code is 1.
    #[command(override_usage = usage("deliver-now [OPTIONS] <TOPIC> <ID|--key <KEY>>"))]
    DeliverNow(Target),
    /// Send every line of a file of JSON objects, in constant memory
    ///
    /// Each line is a message as in the batches of the HTTP interface. A line without an id gets one that is made of the
    /// file's name, the line number and the text. So importing a file again sends nothing twice while its messages are
    /// stored, and for the topic's dedup_window after that.
    ///
    /// Refused lines go to FILE.refused.ndjson with their number and the reason, and the exit code is 1. If Redis fails, the
    /// command that resumes the import is printed.
    Import(ImportArgs),
}

impl MessageVerb {
    /// Runs the verb and returns the exit code.
    ///
    /// # Errors
    /// [`CliError`], which has its own exit code.
    pub async fn execute(
        self,
        broker: Broker,
        config: Config,
        output: &Output,
    ) -> Result<u8, CliError> {
        let options = ProducerOptions {
            topics: config.topics,
            ..ProducerOptions::default()
        };
        let producer = Producer::with_options(broker, options);
        match self {
            Self::Send(send) => commands::send(&producer, *send, output).await,
            Self::Cancel(target) => commands::cancel(&producer, &target, output).await,
            Self::Reschedule { target, due } => {
                commands::reschedule(&producer, &target, due.when(), output).await
            }
            Self::DeliverNow(target) => {
                commands::reschedule(&producer, &target, When::NOW, output).await
            }
            Self::Import(import) => import::run(&producer, &import, output).await,
        }
    }
}

/// Returns the name under which this program was started.
fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(Path::file_name);
    name.map_or("lisa-producer".into(), OsStr::to_string_lossy)
        .into_owned()
}

/// Returns the usage of a verb.
fn usage(of_verb: &str) -> String {
    format!("{} {of_verb}", program())
}

/// One message, or all messages of an ordering key.
#[derive(Debug, Args)]
pub struct Target {
    /// Topic
    topic: Topic,
    #[command(flatten)]
    which: Which,
}

/// The id of a message, an ordering key, or both.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Which {
    /// Message id; without it, all messages of --key, on topics with key_index
    id: Option<MessageId>,
    /// Ordering key of the message, or its merge key if it has no ordering key: finds a message with an id of your own
    /// directly, without querying every shard. Without an id, the ordering key of the messages
    #[arg(long)]
    key: Option<OrderingKey>,
}

/// The parsed target of a verb.
enum Named<'a> {
    Message(&'a MessageId, MessageRef),
    Key(&'a OrderingKey),
}

impl Target {
    fn named(&self) -> Named<'_> {
        match (&self.which.id, &self.which.key) {
            (Some(id), Some(key)) => Named::Message(id, MessageRef::new(id).key(key)),
            (Some(id), None) => Named::Message(id, MessageRef::new(id)),
            (None, key) => Named::Key(key.as_ref().expect("one of both is required")),
        }
    }
}

/// A message to send.
#[derive(Debug, Args)]
#[command(mut_args(alias))]
pub struct SendArgs {
    /// Topic
    topic: Topic,
    /// Payload; - reads standard input [default: empty]
    #[arg(conflicts_with = "file")]
    payload: Option<String>,
    /// Read the payload from this file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    options: FieldArgs<MessageOptions>,
    /// Header of the message; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
}

/// Adds the alias of an option of a message.
fn alias(argument: Arg) -> Arg {
    match argument.get_id().as_str() {
        "deliver_at" => argument.visible_alias("at"),
        _ => argument,
    }
}

/// A due time.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct Due {
    /// Deliver after this time: 250ms, 30s, 2h, 14d
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    delay: Option<Duration>,
    /// Deliver at this time, RFC 3339; a past time means now
    #[arg(long, visible_alias = "at", value_name = "TIME", value_parser = instant)]
    deliver_at: Option<UnixMs>,
}

impl Due {
    fn when(&self) -> When {
        match (self.delay, self.deliver_at) {
            (Some(delay), _) => When::After(delay),
            (None, Some(at)) => When::At(at),
            (None, None) => When::NOW,
        }
    }
}

/// A file of messages to send.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Topic
    topic: Topic,
    /// File; - reads standard input
    file: PathBuf,
    /// Skip the lines before this one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
    /// Name to generate ids from; another name sends the same lines again [default: the name of the file]
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
}

fn instant(text: &str) -> Result<UnixMs, InvalidTime> {
    text.parse()
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The error of a command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command could not start, or the service failed.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A send or another call of the producer failed.
    #[error(transparent)]
    Send(#[from] SendError),
    /// No such topic is registered.
    #[error("topic {topic} is not registered{suggestion}")]
    UnknownTopic {
        /// The topic.
        topic: Topic,
        /// A topic with a similar name, to be appended.
        suggestion: String,
    },
    /// A file or a standard stream could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// The file or stream.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// An import stopped before its end.
    #[error("{source}\nlines before {line} are done; resume with: {command}")]
    Stopped {
        /// The first line that may not have been sent.
        line: u64,
        /// The command that resumes the import there.
        command: String,
        /// The reason.
        source: Box<CliError>,
    },
}

impl CliError {
    /// Returns the exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Start(error) => error.exit_code(),
            Self::Send(
                SendError::Unavailable(_)
                | SendError::Busy { .. }
                | SendError::Indeterminate { .. },
            ) => 69,
            Self::Send(_) | Self::UnknownTopic { .. } | Self::Io { .. } => 1,
            Self::Stopped { source, .. } => source.exit_code(),
        }
    }
}

impl Cli {
    /// Runs the command and returns the exit code.
    ///
    /// # Errors
    /// [`CliError`], which has its own exit code.
    pub async fn run(self) -> Result<u8, CliError> {
        self.flags.output.check(false)?;
        let flags = self.flags();
        let verb = match self.command {
            Command::Run { .. } => {
                let program = Program::prepare("producer", flags, |_| {})?;
                return Ok(program.run(service::serve).await.map(|()| 0)?);
            }
            Command::Message(verb) => verb,
            Command::Config(verb) => {
                let done = verb.execute(
                    "producer",
                    flags.config,
                    flags.overrides,
                    &self.flags.output,
                );
                return Ok(done.map(|()| 0)?);
            }
            Command::Program(verb) => {
                let done = verb.execute(Self::command());
                return done
                    .map(|()| 0)
                    .map_err(|error| StartError::Write(error).into());
            }
        };
        let config = role::prepare_verb(&flags)?.config;
        let broker = role::connect(&config, self.flags.timeout).await?;
        verb.execute(broker, config, &self.flags.output).await
    }

    fn flags(&self) -> Flags {
        let (listen, allow_eviction) = match &self.command {
            Command::Run {
                listen,
                allow_eviction,
            } => (listen.clone(), allow_eviction.then(|| "true".to_owned())),
            _ => (None, None),
        };
        let mut overrides = self.flags.overrides();
        let given = [
            ("producer.listen", listen),
            ("redis.allow_eviction", allow_eviction),
        ];
        for (key, value) in given {
            overrides.extend(value.map(|value| (key.to_owned(), value)));
        }
        Flags {
            config: self.flags.config.clone(),
            overrides,
            sink_secrets: SinkSecrets::Unused,
            aws_secrets: SinkSecrets::Unused,
            source_secrets: match self.command {
                Command::Run { .. } => SinkSecrets::Required,
                _ => SinkSecrets::Unused,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use lisa_service::cli::Format;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_stand_before_or_after_the_verb() {
        for line in [
            "lisa-producer --output json --timeout 1s cancel orders a",
            "lisa-producer cancel --timeout 1s orders a --output json",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(
                (cli.flags.output.format, cli.flags.timeout),
                (Format::Json, Duration::from_secs(1))
            );
        }
    }

    #[test]
    fn the_options_of_a_verb_stand_before_the_global_ones() {
        let mut cli = Cli::command();
        cli.build();
        for (verb, option) in [("run", "--listen"), ("send", "--delay"), ("import", "--as")] {
            let verb = cli.find_subcommand_mut(verb).unwrap();
            let help = verb.render_help().to_string();
            let position = |text: &str| help.find(text).expect(text);
            assert!(position(option) < position("Global options:"), "{help}");
            assert!(position("Global options:") < position("--config"), "{help}");
        }
    }

    #[test]
    fn eviction_can_be_allowed() {
        let allows = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            cli.flags().overrides.remove("redis.allow_eviction")
        };
        let allowed = allows("lisa-producer run --allow-eviction");
        assert_eq!(allowed.as_deref(), Some("true"));
        assert_eq!(allows("lisa-producer run"), None);
    }

    #[test]
    fn the_help_of_cancel_says_which_output_has_the_payload() {
        let mut cli = Cli::command();
        let cancel = cli.find_subcommand_mut("cancel").unwrap();
        let help = cancel.render_long_help().to_string();
        assert!(
            help.contains("it also prints the headers and the payload"),
            "{help}"
        );
    }

    #[test]
    fn a_priority_may_be_negative() {
        let line = "lisa-producer send orders x --priority -3 --retry {}";
        assert!(Cli::try_parse_from(line.split(' ')).is_ok());
    }

    #[test]
    fn wrong_values_are_wrong_usage() {
        for line in [
            "send .orders x",
            "send orders x --delay 5",
            "send orders x --at tomorrow",
            "send orders x --delay 5s --at 2026-11-21T09:30:00Z",
            "send orders x --file y",
            "send orders x --id a.b",
            "send orders x --header y",
            "send orders x --max-attempts 0",
            "send orders x --key a\tb",
            "send orders x --merge-key ",
            "send orders x --priority 2147483648",
            "send orders x --ttl 0s",
            "send orders x --ttl 1s --expires-at 2026-11-21T09:30:00Z",
            "send orders x --retry {\"kind\":\"fixd\"}",
            "send orders x --replace a.b",
            "cancel orders a --key a\tb",
            "deliver-now orders",
            "reschedule orders a",
            "import orders f --from-line 0",
        ] {
            let words = ["lisa-producer"].into_iter().chain(line.split(' '));
            let error = Cli::try_parse_from(words).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
