//! The command line of `lisa-manager`: flags, verbs, exit codes.
//!
//! Only reads arguments and picks the verb; the module `verbs` does it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use futures_util::FutureExt;
use lisa_shared::broker::BrokerError;
use lisa_shared::config::{LoadOptions, Loaded, SinkSecrets};
use lisa_shared::message::{MessageId, OrderingKey};
use lisa_shared::role::{self, Flags, Runtime, StartError};
use lisa_shared::state::State;
use lisa_shared::time::parse_duration;
use lisa_shared::topic::{Group, Topic};

use crate::dev::{self, DevOptions};
use crate::garbage;
use crate::verbs::jobs::ManagerAddress;
use crate::view::AllTopicsError;
use crate::{combined, verbs};

/// Moves due messages to their streams, reclaims what timed out, cleans, and serves operators.
#[derive(Debug, Parser)]
#[command(name = "lisa-manager", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    flags: GlobalFlags,
    #[command(subcommand)]
    verb: Verb,
}

/// Flags before or after the verb.
#[derive(Debug, Args)]
struct GlobalFlags {
    /// Configuration file, TOML or YAML by its ending; without it, the file that LISA_CONFIG names
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of Redis; wins over LISA_REDIS_URL and redis.url of the configuration
    #[arg(long, global = true, value_name = "URL")]
    redis_url: Option<String>,
    /// First part of all keys; wins over namespace of the configuration
    #[arg(long, global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// When a verb gives up (exit code 69); `run` keeps trying
    #[arg(long, global = true, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a manager until SIGTERM or SIGINT
    Run(RunArgs),
    /// Run all roles in one process on a private Redis, and print each delivery as a line of JSON
    Dev(DevArgs),
    /// Count messages by topic, group and state
    Stats,
    /// List the registered topics with their settings, or give one another number of shards
    Topics {
        #[command(subcommand)]
        verb: Option<TopicsVerb>,
    },
    /// Look at messages
    #[command(subcommand)]
    Messages(MessagesVerb),
    /// List, requeue or purge garbage (dead letters)
    #[command(subcommand)]
    Garbage(GarbageVerb),
    /// List the groups of topics, and end them
    #[command(subcommand)]
    Groups(GroupsVerb),
    /// Examine topics while they are in use, and repair them
    Doctor(DoctorArgs),
    /// List the running managers, and the consumers of each group
    Workers,
    /// List the periodic jobs of a running manager with their last runs, or run one now
    Jobs(JobsArgs),
    /// List the schedules of the configuration: up to when each has sent, and its next time
    Schedules,
    /// Stop a topic or one group: messages are accepted, nothing new becomes ready
    Pause(PauseArgs),
    /// Resume a paused topic or group
    Resume(PauseArgs),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigVerb),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Serve the producer's HTTP interface too, on the same listener
    #[arg(long)]
    with_producer: bool,
    /// Address of the listener; wins over manager.listen
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Run on a Redis that may evict keys, and so lose messages
    #[arg(long)]
    allow_eviction: bool,
}

/// Topics are declared by their first send. With --redis-url that Redis is used instead; the file and the environment do not name one.
#[derive(Debug, Args)]
struct DevArgs {
    /// Folder for the data of the private Redis
    #[arg(long, value_name = "FOLDER", default_value = ".lisa")]
    dir: PathBuf,
    /// Address of the listener; wins over manager.listen
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Send a message that is delivered after five seconds
    #[arg(long)]
    demo: bool,
}

/// Asks a running manager; a token, if it wants one, is in LISA_TOKEN.
#[derive(Debug, Args)]
pub(crate) struct JobsArgs {
    /// Where the manager listens, as host:port or http URL; without it, manager.listen of the configuration
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub(crate) manager: Option<ManagerAddress>,
    #[command(subcommand)]
    pub(crate) verb: Option<JobsVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobsVerb {
    /// Run a job now, and wait for its end; exit code 1 if it fails
    Run {
        /// reclaim, clean, statistics, sweep or doctor
        name: String,
    },
}

#[derive(Debug, Subcommand)]
enum MessagesVerb {
    /// List messages of one state, or of one ordering key
    List {
        /// The topic
        topic: Topic,
        /// waiting, backlog, parked, ready, in_flight, retry or garbage; without it, waiting
        #[arg(long)]
        state: Option<State>,
        /// The group; needed where the topic has several, but for waiting
        #[arg(long)]
        group: Option<Group>,
        /// All messages of this ordering key instead, on topics with key_index
        #[arg(long, conflicts_with_all = ["state", "group"])]
        key: Option<OrderingKey>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one message with its payload
    Show {
        /// The topic
        topic: Topic,
        /// The message
        id: MessageId,
        /// Its ordering key, else its merge key: finds a message with an id of your own at once, without asking every shard
        #[arg(long)]
        key: Option<OrderingKey>,
    },
}

/// Exit code 1 if something is wrong and was not repaired.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Topics; all if none is named
    pub(crate) topics: Vec<Topic>,
    /// Repair what is found; without it nothing is changed
    #[arg(long)]
    pub(crate) repair: bool,
    /// Do not ask before the repair
    #[arg(long, requires = "repair")]
    pub(crate) yes: bool,
}

/// Which part of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Messages in a page, 1 to 1000
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
    /// Where to go on, as the page before said
    #[arg(long)]
    pub(crate) cursor: Option<String>,
}

#[derive(Debug, Args)]
struct PauseArgs {
    /// The topic
    topic: Topic,
    /// Only this group; the others continue
    #[arg(long)]
    group: Option<Group>,
}

#[derive(Debug, Subcommand)]
enum GroupsVerb {
    /// List groups with their counts, and whether the settings name them
    List {
        /// Only those of this topic
        topic: Option<Topic>,
    },
    /// Give a group nothing new; its consumers finish what it has, then it is removed
    Drain(GroupArgs),
    /// Drop what a group has, for ever, and remove it
    Drop {
        #[command(flatten)]
        of: GroupArgs,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Cancel a drain or drop: the group gets what becomes due from now on
    Keep(GroupArgs),
}

#[derive(Debug, Subcommand)]
enum TopicsVerb {
    /// Give a topic another number of shards while it is in use, and wait until managers have moved its messages
    Reshard {
        /// The topic
        topic: Topic,
        /// The number of shards, 1 to 1024
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
        shards: u16,
        /// Do not wait; managers finish the move
        #[arg(long)]
        no_wait: bool,
    },
}

/// Which group.
#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    /// The topic
    pub(crate) topic: Topic,
    /// The group
    pub(crate) group: Group,
}

#[derive(Debug, Subcommand)]
enum GarbageVerb {
    /// List messages in garbage with the reason
    List {
        /// The topic
        topic: Topic,
        /// The group; needed where the topic has several
        #[arg(long)]
        group: Option<Group>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Deliver messages in garbage again, with new attempts
    Requeue(SweepArgs),
    /// Remove messages in garbage for ever
    Purge(SweepArgs),
}

/// Which messages in garbage, and how.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// The topic
    pub(crate) topic: Topic,
    /// Messages; --all for all of them
    #[arg(conflicts_with = "all")]
    pub(crate) ids: Vec<MessageId>,
    /// All that are in garbage now
    #[arg(long)]
    pub(crate) all: bool,
    /// The group; needed where the topic has several
    #[arg(long)]
    pub(crate) group: Option<Group>,
    /// Only count
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Check the configuration and list all mistakes
    Check,
    /// Print the configuration in effect with the source of each value
    Show,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// Configuration, Redis, listener or a task.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The command was understood, and cannot be done.
    #[error("{0}")]
    Failed(String),
    /// The command makes no sense like this.
    #[error("{0}")]
    Usage(String),
    /// The result could not be printed, or the runtime not be made.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl CliError {
    /// Gives the exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Start(error) => error.exit_code(),
            Self::Failed(_) | Self::Io(_) => 1,
            Self::Usage(_) => 2,
        }
    }
}

impl From<AllTopicsError> for CliError {
    fn from(error: AllTopicsError) -> Self {
        match error {
            AllTopicsError::Broker(error) => error.into(),
            AllTopicsError::Unanswered => StartError::Unavailable(error.to_string()).into(),
        }
    }
}

impl From<BrokerError> for CliError {
    fn from(error: BrokerError) -> Self {
        Self::Start(error.into())
    }
}

impl Cli {
    /// Does what the command line says.
    ///
    /// # Errors
    /// [`CliError`], whose exit code the process should end with.
    pub async fn execute(self) -> Result<(), CliError> {
        let Self { flags, verb } = self;
        let mut overrides = BTreeMap::new();
        let given = [
            ("redis.url", &flags.redis_url),
            ("namespace", &flags.namespace),
        ];
        for (key, value) in given {
            if let Some(value) = value {
                overrides.insert(key.to_owned(), value.clone());
            }
        }
        match &verb {
            Verb::Config(verb) => return config(verb, flags.config, overrides, flags.output),
            Verb::Run(args) => {
                if let Some(listen) = &args.listen {
                    overrides.insert("manager.listen".to_owned(), listen.clone());
                }
                if args.allow_eviction {
                    overrides.insert("redis.allow_eviction".to_owned(), "true".to_owned());
                }
            }
            Verb::Dev(DevArgs {
                listen: Some(listen),
                ..
            }) => {
                overrides.insert("manager.listen".to_owned(), listen.clone());
            }
            _ => {}
        }
        let flags_of_role = Flags {
            config: flags.config,
            overrides,
            sink_secrets: SinkSecrets::Unused,
        };
        if let Verb::Run(args) = verb {
            let loaded = role::prepare(flags_of_role)?;
            let runtime = Runtime::start(combined::role(args.with_producer), loaded.config)?;
            return Ok(combined::run(runtime, args.with_producer).await?);
        }
        if let Verb::Dev(args) = verb {
            let loaded = role::prepare(flags_of_role)?;
            let options = DevOptions {
                dir: flags.redis_url.is_none().then_some(args.dir),
                demo: args.demo,
            };
            return Ok(dev::run(loaded.config, options).await?);
        }
        let loaded = role::prepare_verb(flags_of_role)?;
        if let Verb::Jobs(args) = verb {
            let listen = loaded.config.manager.listen;
            let manager = args.manager.unwrap_or_else(|| listen.into());
            // Boxed: the types of an HTTP client are deep.
            let jobs = verbs::jobs::jobs(&manager, args.verb, flags.timeout, flags.output);
            return jobs.boxed_local().await;
        }
        let broker = role::connect(&loaded.config, flags.timeout).await?;
        let output = flags.output;
        match verb {
            Verb::Run(_) | Verb::Dev(_) | Verb::Config(_) | Verb::Jobs(_) => Ok(()),
            Verb::Workers => verbs::workers::workers(&broker, output).await,
            Verb::Stats => verbs::stats(&broker, output).await,
            Verb::Topics { verb: None } => verbs::topics(&broker, output).await,
            Verb::Topics {
                verb:
                    Some(TopicsVerb::Reshard {
                        topic,
                        shards,
                        no_wait,
                    }),
            } => verbs::reshard::reshard(&broker, &topic, shards, !no_wait, output).await,
            Verb::Messages(MessagesVerb::List {
                topic,
                state,
                group,
                key,
                page,
            }) => match (key, state) {
                (Some(key), _) => verbs::list_of_key(&broker, &topic, &key, &page, output).await,
                (None, state) => {
                    let state = state.unwrap_or(State::Waiting);
                    verbs::list(&broker, &topic, group.as_ref(), state, &page, output).await
                }
            },
            Verb::Messages(MessagesVerb::Show { topic, id, key }) => {
                verbs::show(&broker, &topic, &id, key.as_ref(), output).await
            }
            Verb::Garbage(GarbageVerb::List { topic, group, page }) => {
                verbs::list(
                    &broker,
                    &topic,
                    group.as_ref(),
                    State::Garbage,
                    &page,
                    output,
                )
                .await
            }
            Verb::Garbage(GarbageVerb::Requeue(args)) => {
                verbs::sweep(&broker, garbage::Verb::Requeue, args, output).await
            }
            Verb::Garbage(GarbageVerb::Purge(args)) => {
                verbs::sweep(&broker, garbage::Verb::Purge, args, output).await
            }
            Verb::Groups(GroupsVerb::List { topic }) => {
                verbs::groups::list(&broker, topic.as_ref(), output).await
            }
            Verb::Groups(GroupsVerb::Drain(of)) => verbs::groups::drain(&broker, &of, output).await,
            Verb::Groups(GroupsVerb::Drop { of, yes }) => {
                verbs::groups::drop_group(&broker, &of, yes, output).await
            }
            Verb::Groups(GroupsVerb::Keep(of)) => verbs::groups::keep(&broker, &of, output).await,
            Verb::Schedules => verbs::schedules(&broker, &loaded, output).await,
            Verb::Doctor(args) => verbs::doctor::examine(&broker, args, output).await,
            Verb::Pause(PauseArgs { topic, group }) => {
                verbs::pause(&broker, &topic, group.as_ref(), true, output).await
            }
            Verb::Resume(PauseArgs { topic, group }) => {
                verbs::pause(&broker, &topic, group.as_ref(), false, output).await
            }
        }
    }
}

fn config(
    verb: &ConfigVerb,
    file: Option<PathBuf>,
    overrides: BTreeMap<String, String>,
    output: Output,
) -> Result<(), CliError> {
    let options = LoadOptions {
        sink_secrets: SinkSecrets::Checked,
        ..LoadOptions::from_process(file, overrides)
    };
    let loaded = Loaded::load(options).map_err(StartError::from)?;
    match (verb, output) {
        (ConfigVerb::Check, Output::Table) => {
            for warning in &loaded.warnings {
                eprintln!("warning: {warning}");
            }
            verbs::print("the configuration is valid")
        }
        (ConfigVerb::Check, Output::Json) => verbs::config_valid(&loaded.warnings),
        (ConfigVerb::Show, Output::Table) => verbs::print(&loaded.to_toml()),
        (ConfigVerb::Show, Output::Json) => verbs::print(&loaded.to_json()),
    }
}
