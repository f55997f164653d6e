//! The command line of `lisa-producer`: the service, and verbs that talk to Redis directly.
//!
//! It reads arguments and prints outcomes; what they mean is the library's.

mod import;
mod service;
mod verbs;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use lisa_shared::config::SinkSecrets;
use lisa_shared::durability::Durability;
use lisa_shared::message::{MergeKey, MessageId, OrderingKey};
use lisa_shared::retry::RetryPolicy;
use lisa_shared::role::{self, Flags, StartError};
use lisa_shared::time::{InvalidTime, UnixMs, When, parse_duration};
use lisa_shared::topic::Topic;

use crate::error::SendError;
use crate::fields::ttl;
use crate::message_ref::MessageRef;
use crate::outgoing::MAX_ATTEMPTS;
use crate::producer::{Producer, ProducerOptions};

/// Accepts messages for later delivery.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 69 Redis unavailable, 78 wrong configuration.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// The configuration, TOML or YAML by its ending; without it, the file that LISA_CONFIG names.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address of Redis, instead of LISA_REDIS_URL and redis.url. A password in it is visible in the list of processes:
    /// use LISA_REDIS__PASSWORD_FILE instead.
    #[arg(long, global = true, value_name = "URL")]
    redis_url: Option<String>,
    /// The namespace of all keys, instead of the configured one.
    #[arg(long, global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// How verbs print what they did: for people, or one JSON object.
    #[arg(long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// When verbs give up on Redis.
    #[arg(long, global = true, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves the HTTP interface until it is told to stop.
    Run {
        /// Where to listen, instead of producer.listen.
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<String>,
        /// Run on a Redis that may evict keys, and so lose messages
        #[arg(long)]
        allow_eviction: bool,
    },
    #[command(flatten)]
    Verb(Verb),
}

/// What talks to Redis directly, and ends.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Sends one message, due now unless it says otherwise.
    Send(Box<SendArgs>),
    /// Cancels a message that has not been delivered yet; without an id, all of a key. With --output json, it also prints the
    /// headers and the payload of the message.
    #[command(override_usage = "lisa-producer cancel [OPTIONS] <TOPIC> <ID|--key <KEY>>")]
    Cancel(Target),
    /// Gives a message, or all of a key, that are not on the stream and not in garbage another due time.
    #[command(
        group = ArgGroup::new("due").required(true).args(["delay", "at"]),
        override_usage = "lisa-producer reschedule [OPTIONS] <TOPIC> <ID|--key <KEY>> <--delay <DURATION>|--at <INSTANT>>"
    )]
    Reschedule {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        due: Due,
    },
    /// Makes a message, or all of a key, that are not on the stream and not in garbage due now.
    #[command(override_usage = "lisa-producer deliver-now [OPTIONS] <TOPIC> <ID|--key <KEY>>")]
    DeliverNow(Target),
    /// Sends every line of a file, in constant memory; each is a message as in the batches of the HTTP interface.
    ///
    /// A line without an id gets one made of the file's name, the number of the line and its text, so importing the same
    /// file again sends nothing twice while its messages are stored, and for the topic's dedup_window after.
    /// Lines that are refused go to FILE.refused.ndjson with their number and the reason, and the exit code is 1. When
    /// Redis fails, the line to go on from is printed.
    Import(ImportArgs),
}

/// One message, or all of an ordering key.
#[derive(Debug, Args)]
struct Target {
    /// The topic.
    topic: Topic,
    #[command(flatten)]
    which: Which,
}

/// Which of the topic's.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Which {
    /// The message; without it all messages of the key, on topics with key_index.
    id: Option<MessageId>,
    /// The message's ordering key, else its merge key: finds one with an id of your own at once, without asking every shard.
    /// Without an id, the ordering key of all that are meant.
    #[arg(long)]
    key: Option<OrderingKey>,
}

/// What a verb is about.
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

#[derive(Debug, Args)]
struct SendArgs {
    /// The topic.
    topic: Topic,
    /// The payload; - reads it from standard input; without, it is empty.
    #[arg(conflicts_with = "file")]
    payload: Option<String>,
    /// Reads the payload from a file.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    due: Due,
    /// An id of your own, [A-Za-z0-9_:-]{1,64}: sending it again is a duplicate, which is no error.
    #[arg(long)]
    id: Option<MessageId>,
    /// A header of the message; may be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Deliveries before the message goes to garbage, 1 to 1000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ATTEMPTS)))]
    max_attempts: Option<u32>,
    /// Delivers messages of one key one at a time in each group, by due time, then arrival.
    #[arg(long)]
    key: Option<OrderingKey>,
    /// Merges it with a message of the same keys that was not delivered yet, as the topic's merge says.
    #[arg(long, value_name = "KEY")]
    merge_key: Option<MergeKey>,
    /// Priority: of the messages that are due, the highest goes first.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    priority: i32,
    /// Expires it this long after its due time, 1ms to 3653d.
    #[arg(long, value_name = "DURATION", value_parser = ttl, conflicts_with = "expires_at")]
    ttl: Option<Duration>,
    /// Expires it at this instant, RFC 3339.
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    expires_at: Option<UnixMs>,
    /// Its own retry policy as JSON, with the keys of the configuration: {"kind": "fixed", "delay": "5s"}.
    #[arg(long, value_name = "JSON")]
    retry: Option<RetryPolicy>,
    /// Cancels the message of this id in the same step; if it cannot be cancelled, nothing is sent.
    #[arg(long, value_name = "ID")]
    replace: Option<MessageId>,
    /// Sends it although a message of its id was cancelled.
    #[arg(long)]
    even_if_cancelled: bool,
    /// What to wait for: memory, aof or replicas:N; the topic's own if it is not given.
    #[arg(long, value_name = "WHAT")]
    durability: Option<Durability>,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Due {
    /// Due after this time: 250ms, 30s, 2h, 14d.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    delay: Option<Duration>,
    /// Due at this instant, RFC 3339; a past one means now.
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    at: Option<UnixMs>,
}

impl Due {
    fn when(&self) -> When {
        match (self.delay, self.at) {
            (Some(delay), _) => When::After(delay),
            (None, Some(at)) => When::At(at),
            (None, None) => When::NOW,
        }
    }
}

#[derive(Debug, Args)]
struct ImportArgs {
    /// The topic.
    topic: Topic,
    /// The file; - is standard input.
    file: PathBuf,
    /// Skips the lines before this one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
    /// Takes this name instead of the file's for the ids that are made: another name sends the same lines again.
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
}

fn instant(text: &str) -> Result<UnixMs, InvalidTime> {
    text.parse()
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// It could not begin, or the service fell.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The message was not taken.
    #[error(transparent)]
    Send(#[from] SendError),
    /// A file or standard input could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted on what.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// An import stopped.
    #[error("{source}\nlines before {line} are done; resume with: {command}")]
    Stopped {
        /// The first line that may be undone.
        line: u64,
        /// The command that goes on from there.
        command: String,
        /// Why it stopped.
        source: Box<CliError>,
    },
}

impl CliError {
    /// Gives the exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Start(error) => error.exit_code(),
            Self::Send(
                SendError::Unavailable(_)
                | SendError::Busy { .. }
                | SendError::Indeterminate { .. },
            ) => 69,
            Self::Send(_) | Self::Io { .. } => 1,
            Self::Stopped { source, .. } => source.exit_code(),
        }
    }
}

impl Cli {
    /// Does what the arguments say; gives the exit code.
    ///
    /// # Errors
    /// [`CliError`], which has an exit code too.
    pub async fn run(self) -> Result<u8, CliError> {
        let flags = self.flags();
        let verb = match self.command {
            Command::Run { .. } => {
                let config = role::prepare(flags)?.config;
                return Ok(service::serve(config).await.map(|()| 0)?);
            }
            Command::Verb(verb) => verb,
        };
        let config = role::prepare_verb(flags)?.config;
        let broker = role::connect(&config, self.timeout).await?;
        let options = ProducerOptions {
            topics: config.topics,
            ..ProducerOptions::default()
        };
        let producer = Producer::with_options(broker, options);
        let json = self.output == Output::Json;
        match verb {
            Verb::Send(send) => verbs::send(&producer, *send, json).await,
            Verb::Cancel(target) => verbs::cancel(&producer, &target, json).await,
            Verb::Reschedule { target, due } => {
                verbs::reschedule(&producer, &target, due.when(), json).await
            }
            Verb::DeliverNow(target) => {
                verbs::reschedule(&producer, &target, When::NOW, json).await
            }
            Verb::Import(import) => import::run(&producer, &import, json).await,
        }
    }

    fn flags(&self) -> Flags {
        let (listen, allow_eviction) = match &self.command {
            Command::Run {
                listen,
                allow_eviction,
            } => (listen.clone(), allow_eviction.then(|| "true".to_owned())),
            Command::Verb(_) => (None, None),
        };
        let given = [
            ("redis.url", self.redis_url.clone()),
            ("namespace", self.namespace.clone()),
            ("producer.listen", listen),
            ("redis.allow_eviction", allow_eviction),
        ];
        let overrides: BTreeMap<String, String> = given
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect();
        Flags {
            config: self.config.clone(),
            overrides,
            sink_secrets: SinkSecrets::Unused,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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
                (cli.output, cli.timeout),
                (Output::Json, Duration::from_secs(1))
            );
        }
    }

    #[test]
    fn a_producer_may_be_told_to_run_on_a_redis_that_evicts() {
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
            help.contains("With --output json, it also prints the headers and the payload"),
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
            "send Orders x",
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
