//! The arguments of `lisa-manager`.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use lisa_core::broker::EntryPosition;
use lisa_core::durability::Durability;
use lisa_core::fields::Size;
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::state::State;
use lisa_core::time::parse_duration;
use lisa_core::topic::{Group, ScheduleName, Topic};
use lisa_producer::cli::MessageVerb;
use lisa_service::cli::{ConfigVerb, FieldArgs, GlobalFlags, ProgramVerb};

use crate::cli::manager_flags::ManagerFlags;
use crate::cli::manager_url::ManagerUrl;
use crate::cli::operator::OperatorVerb;
use crate::operations::garbage_filter::Filter;
use crate::operations::garbage_jobs::JobLimits;
use crate::operations::past_time::PastTime;
use crate::size::AppendOnly;

/// Move due messages to their streams, reclaim expired leases, clean up, and serve operators
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 69 Redis unavailable, 78 wrong configuration
#[derive(Debug, Parser)]
#[command(name = "lisa-manager", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    pub(crate) flags: GlobalFlags,
    #[command(flatten)]
    pub(crate) through: ManagerFlags,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a manager until SIGTERM or SIGINT
    Run(RunArgs),
    /// Run all roles in one process on a private Redis, and print each delivery as a line of JSON
    ///
    /// The first send to a topic declares it. With --redis-url, dev uses that Redis instead of a private one;
    /// LISA_REDIS_URL and redis.url have no effect
    Dev(DevArgs),
    #[command(flatten)]
    Operator(OperatorVerb),
    /// Check for late messages, garbage (dead letters), failing schedules, damage and missing managers
    ///
    /// Prints one line. Exit codes, as for Nagios: 0 ok, 1 warning, 2 critical, 3 unknown. Unaccounted messages, messages
    /// without a record, a damaged topic and the lack of a manager are critical. The result is unknown if something cannot be
    /// read, for example because Redis is unavailable. Ages of paused topics and groups are not checked
    Check(CheckArgs),
    /// List the periodic jobs of a running manager with their last runs, or run one now
    ///
    /// Asks the manager over HTTP, always. If it requires a token, name a file with one that has the scope read (operate for
    /// `run`) with --token-file
    Jobs(JobsArgs),
    /// Check the health of the roles on this machine, for the health check of a container
    ///
    /// Requests /healthz from the listeners of the configuration: producer.listen, manager.listen and consumer.listen. Skips a
    /// role whose listener refuses the connection, or at whose address another program answers, because it runs elsewhere. Exit
    /// codes: 0 every role that runs here is healthy, 1 a role is unhealthy or none runs here, 78 invalid configuration
    Healthcheck,
    /// Estimate memory, disk, cores and connections for a load
    ///
    /// Computes with figures that were measured on Redis 7.0 and two cores, and needs no Redis. With a topic, reads its shards,
    /// groups, dedup_window and durability, and what it stores and sends now; options override these values. The machine of Redis
    /// needs as much memory as the line "machine" shows
    Size(SizeArgs),
    #[command(flatten)]
    Message(MessageVerb),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    #[command(flatten)]
    Program(ProgramVerb),
}

impl Verb {
    /// Returns the name of a verb that never works on a running relay.
    pub(crate) fn without_relay(&self) -> Option<&'static str> {
        match self {
            Self::Run(_) => Some("run"),
            Self::Dev(_) => Some("dev"),
            Self::Healthcheck => Some("healthcheck"),
            Self::Config(_) => Some("config"),
            Self::Program(_) => Some("this verb"),
            _ => None,
        }
    }

    /// Returns whether the verb prints a list, which has columns. Such a verb changes nothing.
    pub(crate) fn prints_list(&self) -> bool {
        match self {
            Self::Operator(verb) => verb.prints_list(),
            Self::Jobs(args) => matches!(args.verb, None | Some(JobsVerb::List)),
            Self::Size(_) => true,
            _ => false,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Also serve the producer's HTTP interface, on the same listener
    #[arg(long)]
    pub(crate) with_producer: bool,
    /// Address of the listener; overrides manager.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<String>,
    /// Run on a Redis that may evict keys and thereby lose messages
    #[arg(long)]
    pub(crate) allow_eviction: bool,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print the newest counts of the managers, at most seconds old, instead of counting: two reads for any number of topics
    #[arg(long)]
    pub(crate) snapshot: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ForecastArgs {
    /// Topic [default: all]
    pub(crate) topic: Option<Topic>,
    /// Period from now on [default: 24h]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) within: Option<Duration>,
    /// Length of a step; longer if there would be more than 60 steps, or 23 with more than 16 shards [default: 30m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) step: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Topic; without one, all topics together
    pub(crate) topic: Option<Topic>,
    /// Period up to now [default: 6h]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) within: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Show only the groups of this topic
    #[arg(long)]
    pub(crate) topic: Option<Topic>,
    /// Time between two refreshes, at least 250ms
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print the groups once, without rates
    #[arg(long)]
    pub(crate) once: bool,
    /// Largest number of groups to show, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..=10000))]
    pub(crate) limit: u16,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Topic
    pub(crate) topic: Topic,
    /// Group; by default all
    #[arg(long)]
    pub(crate) group: Option<Group>,
    /// Leave out messages that become ready
    #[arg(long)]
    pub(crate) failures: bool,
    /// First print the kept failures since this time, such as 2026-11-21T09:30:00Z, or 24h for the last 24 hours. Each shard keeps
    /// about the newest 1000
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<PastTime>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Check only this topic
    #[arg(long)]
    pub(crate) topic: Option<Topic>,
    /// Age of the oldest due message of a group above which the result is a warning [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) late: Option<Duration>,
    /// Number of messages in the garbage of a group above which the result is a warning [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) garbage: Option<u64>,
    /// Age of the oldest due message of a group above which the result is critical [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) oldest: Option<Duration>,
}

/// Parses an interval at which Redis may be asked repeatedly.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    if interval < Duration::from_millis(250) {
        return Err("must be at least 250ms".to_owned());
    }
    Ok(interval)
}

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Directory for the data of the private Redis
    #[arg(long, value_name = "DIRECTORY", default_value = ".lisa")]
    pub(crate) dir: PathBuf,
    /// Address of the listener; overrides manager.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<String>,
    /// Send one message that is due in five seconds
    #[arg(long)]
    pub(crate) demo: bool,
}

#[derive(Debug, Args)]
pub(crate) struct JobsArgs {
    /// Address of the manager, host:port or a URL, such as lisa-manager:7812 [default: --url, else manager.listen of the
    /// configuration]
    ///
    /// A manager without tokens accepts a host name with a dot only if its auth.allowed_hosts lists that name
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub(crate) manager: Option<ManagerUrl>,
    #[command(subcommand)]
    pub(crate) verb: Option<JobsVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobsVerb {
    /// List the jobs; this is the default
    List,
    /// Run a job now and wait for it to finish; the exit code is 1 if it fails
    Run {
        /// Job: reclaim, clean, statistics, sweep or doctor
        name: String,
    },
}

/// The load to estimate for.
#[derive(Debug, Args)]
pub(crate) struct SizeArgs {
    /// Topic whose current load is the default
    pub(crate) topic: Option<Topic>,
    /// Print the figures behind the estimate, with their origins
    #[arg(long)]
    pub(crate) figures: bool,
    /// Messages that wait, in all topics together [default: 1000000]
    #[arg(long, value_name = "N")]
    pub(crate) waiting: Option<u64>,
    /// Messages in garbage (dead letters), for each group [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) garbage: Option<u64>,
    /// Mean size of a payload
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = size)]
    pub(crate) payload: u64,
    /// Mean size of the headers of a message, names and values
    #[arg(long, value_name = "SIZE", default_value = "0B", value_parser = size)]
    pub(crate) headers: u64,
    /// Mean length of an ordering key; 0 for messages without one
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=256))]
    pub(crate) key: u64,
    /// Sends per second, in all topics together [default: 100]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) sends: Option<f64>,
    /// Deliveries per second, in all groups together [default: the sends, once for each group]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) deliveries: Option<f64>,
    /// Longest time without consumers to plan for: sends collect meanwhile
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub(crate) outage: Duration,
    /// Number of topics
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) topics: u64,
    /// Shards of each topic [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) shards: Option<u64>,
    /// Groups of each topic [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=64))]
    pub(crate) groups: Option<u64>,
    /// Plan for senders that set the id of each message: it is remembered for the dedup window
    #[arg(long)]
    pub(crate) own_ids: bool,
    /// Time for which ended ids are remembered [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) dedup_window: Option<Duration>,
    /// Messages per request of senders, and of workers that pull
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) batch: u64,
    /// Plan for workers that pull from a gateway
    #[arg(long)]
    pub(crate) pull: bool,
    /// Append-only file of Redis
    #[arg(long, value_enum, value_name = "MODE", default_value_t = AppendOnly::Everysec)]
    pub(crate) append_only: AppendOnly,
    /// Durability that sends wait for: memory, aof or replicas:N [default: memory]
    #[arg(long)]
    pub(crate) durability: Option<Durability>,
    /// Number of producer processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) producers: u64,
    /// Number of manager processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) managers: u64,
    /// Number of consumer processes, each of which reads all topics and groups
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub(crate) consumers: u64,
    /// Number of Redis masters
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) servers: u64,
}

/// Parses a number of bytes that one value of Redis can have: a size with a unit, or a whole number.
fn size(text: &str) -> Result<u64, &'static str> {
    let size = text
        .parse()
        .map(Size::new)
        .or_else(|_| text.parse::<Size>())?
        .get();
    let is_possible = size <= 512 << 20;
    is_possible.then_some(size).ok_or("expected at most 512MiB")
}

/// Parses a rate per second.
fn rate(text: &str) -> Result<f64, &'static str> {
    const EXPECTED: &str = "expected messages per second, such as 100 or 0.5";
    let rate: f64 = text.parse().map_err(|_| EXPECTED)?;
    let is_possible = rate.is_finite() && (0.0..=1e9).contains(&rate);
    is_possible.then_some(rate).ok_or(EXPECTED)
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Topic
    pub(crate) topic: Topic,
    /// State: waiting, backlog, parked, ready, in_flight, retry or garbage [default: waiting]
    #[arg(long)]
    pub(crate) state: Option<State>,
    /// Group; required if the topic has several, except for waiting messages
    #[arg(long)]
    pub(crate) group: Option<Group>,
    /// List all messages of this ordering key instead; the topic needs key_index
    #[arg(long, conflicts_with_all = ["state", "group", "from", "to", "newest"])]
    pub(crate) key: Option<OrderingKey>,
    /// List only messages whose time, as the list shows it, is at or after this one, such as 2026-11-21T09:30:00Z, or 24h for the
    /// last 24 hours
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<PastTime>,
    /// List only messages whose time is before this one
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<PastTime>,
    /// List the newest first, within each shard
    #[arg(long)]
    pub(crate) newest: bool,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// One message.
#[derive(Debug, Args)]
pub(crate) struct MessageArgs {
    /// Topic
    pub(crate) topic: Topic,
    /// Message id
    pub(crate) id: MessageId,
    /// Ordering key of the message, or its merge key if it has no ordering key: finds a message with an id of your own
    /// directly, without querying every shard
    #[arg(long)]
    pub(crate) key: Option<OrderingKey>,
}

#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// Topic
    pub(crate) topic: Topic,
    /// Group; required if the topic has several
    #[arg(long)]
    pub(crate) group: Option<Group>,
    /// Keys per page, 1 to 50
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=50))]
    pub(crate) limit: u16,
    /// Start of the page, as printed at the end of the previous one
    #[arg(long)]
    pub(crate) cursor: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Topics [default: all]
    pub(crate) topics: Vec<Topic>,
    /// Repair the faults found; without it, nothing is changed
    #[arg(long)]
    pub(crate) repair: bool,
    /// Do not ask for confirmation
    #[arg(long, requires = "repair")]
    pub(crate) yes: bool,
}

/// A page of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Messages per page, 1 to 1000
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
    /// Start of the page, as printed at the end of the previous one
    #[arg(long)]
    pub(crate) cursor: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Entries per page, 1 to 1000
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
    /// Start of the page, as printed at the end of the previous one
    #[arg(long)]
    pub(crate) cursor: Option<EntryPosition>,
}

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Topic
    pub(crate) topic: Topic,
    /// Only this group; the other groups continue
    #[arg(long)]
    pub(crate) group: Option<Group>,
}

#[derive(Debug, Args)]
pub(crate) struct ReshardArgs {
    /// Topic
    pub(crate) topic: Topic,
    /// New number of shards, 1 to 1024
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) shards: u16,
    /// Do not wait; managers finish the migration
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// A group of a topic.
#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    /// Topic
    pub(crate) topic: Topic,
    /// Group
    pub(crate) group: Group,
}

#[derive(Debug, Args)]
pub(crate) struct GarbageListArgs {
    /// Topic
    pub(crate) topic: Topic,
    /// Group; required if the topic has several
    #[arg(long)]
    pub(crate) group: Option<Group>,
    #[command(flatten)]
    pub(crate) filter: FieldArgs<Filter>,
    /// List the newest first, within each shard
    #[arg(long)]
    pub(crate) newest: bool,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// The schedule and the period of a backfill.
#[derive(Debug, Args)]
pub(crate) struct BackfillArgs {
    /// Schedule
    pub(crate) schedule: ScheduleName,
    /// First time, such as 2026-11-21T09:30:00Z, or 24h for the last 24 hours
    #[arg(long, value_name = "TIME")]
    pub(crate) from: PastTime,
    /// End of the period, exclusive [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<PastTime>,
    /// Count the times, and send nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
}

/// The messages in garbage to requeue or purge.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// Topic
    pub(crate) topic: Topic,
    /// Message ids; or use --all
    #[arg(conflicts_with = "all")]
    pub(crate) ids: Vec<MessageId>,
    /// Select all messages that are in garbage now
    #[arg(long)]
    pub(crate) all: bool,
    /// Group; required if the topic has several
    #[arg(long)]
    pub(crate) group: Option<Group>,
    /// Count the messages, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// The filter and the limits of a garbage job, which a running manager works on.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    pub(crate) filter: FieldArgs<Filter>,
    #[command(flatten)]
    pub(crate) limits: FieldArgs<JobLimits>,
    /// Do not wait for the job
    #[arg(long)]
    pub(crate) no_wait: bool,
}
