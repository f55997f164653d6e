//! The command line of `lisa-consumer`, and the consumer as a process of its own.
//!
//! Reads arguments and configuration, makes the sinks, and starts the library. Messages go to standard output only
//! if a sink says so; logs never do.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use clap::{Args, Parser, Subcommand};
use lisa_shared::broker::{Broker, BrokerError, ConsumerInfo, Declare};
use lisa_shared::config::{Config, SubscriptionGroup};
use lisa_shared::role::{self, Flags, Readiness, Runtime, StartError};
use lisa_shared::supervise::Policy;
use lisa_shared::topic::{Group, Topic};
use serde_json::json;

use crate::consumer::Consumer;
use crate::sinks;
use crate::subscription::Subscription;

/// A consumer that runs is heard of more often than this.
const HEARD_OF: Duration = Duration::from_secs(30);
/// Names of other consumers in a message.
const LISTED: usize = 5;
/// How often it is looked whether a subscription still waits for its topic.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Reads messages through consumer groups and hands them to sinks.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage or not confirmed, 78 wrong configuration.
#[derive(Debug, Parser)]
#[command(name = "lisa-consumer", version, propagate_version = true)]
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
    /// Address of Redis; wins over LISA_REDIS_URL and redis.url of the configuration. A password in it is visible in the list of processes:
    /// use LISA_REDIS__PASSWORD_FILE instead
    #[arg(long, global = true, value_name = "URL")]
    redis_url: Option<String>,
    /// First part of all keys; wins over namespace of the configuration
    #[arg(long, global = true, value_name = "NAME")]
    namespace: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Consume until SIGTERM or SIGINT
    Run(RunArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Print the messages of this topic that become due from now on, instead of the configured subscriptions
    #[arg(long)]
    topic: Option<Topic>,
    /// Read --topic as this group: what is printed is acknowledged, and no other consumer of the group gets it.
    /// {instance} is a group of this process alone, which takes nothing from others
    #[arg(long, requires = "topic", default_value = "{instance}")]
    group: SubscriptionGroup,
    /// Read --group even if other consumers read it: do not ask or warn
    #[arg(long, requires = "topic")]
    yes: bool,
    /// Address of the listener for health and metrics; wins over consumer.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Run on a Redis that may evict keys, and so lose messages
    #[arg(long)]
    allow_eviction: bool,
}

impl Cli {
    /// Does what the command line says.
    ///
    /// # Errors
    /// [`StartError`], which knows the exit code.
    pub async fn execute(self) -> Result<(), StartError> {
        let Verb::Run(args) = self.verb;
        let mut overrides = BTreeMap::new();
        let mut set = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                overrides.insert(key.to_owned(), value);
            }
        };
        set("redis.url", self.flags.redis_url);
        set("namespace", self.flags.namespace);
        set("consumer.listen", args.listen);
        set(
            "redis.allow_eviction",
            args.allow_eviction.then(|| "true".to_owned()),
        );
        let shared = match (&args.topic, &args.group, args.yes) {
            (Some(topic), SubscriptionGroup::Named(group), false) => {
                Some((topic.clone(), group.clone()))
            }
            _ => None,
        };
        let printed = args.topic.map(|topic| {
            json!([{"topic": topic, "group": args.group.to_string(), "sink": {"type": "stdout"}}]).to_string()
        });
        set("consumer.subscriptions", printed);
        let loaded = role::prepare(Flags {
            config: self.flags.config,
            overrides,
            ..Flags::default()
        })?;
        serve(Runtime::start("consumer", loaded.config)?, shared).await
    }
}

/// Runs the configured subscriptions to the end of the runtime.
///
/// # Errors
/// [`StartError`].
///
/// # Cancel safety
/// Dropping the future aborts all tasks; what was in flight comes again after its lease, counted.
pub async fn run(runtime: Runtime) -> Result<(), StartError> {
    serve(runtime, None).await
}

/// Does the same; `shared` is a group whose other consumers somebody should know of first.
async fn serve(runtime: Runtime, shared: Option<(Topic, Group)>) -> Result<(), StartError> {
    let consumer = of(&runtime)?;
    runtime
        .readiness
        .wait_for("topics", "the topics are not declared yet");
    let watched = consumer.clone();
    runtime.readiness.warn_with(move || watched.warnings());
    let listen = runtime.config.consumer.listen;
    runtime.listen(listen, Router::new()).await?;
    runtime
        .run(async move |runtime| {
            declare(runtime).await?;
            if let Some((topic, group)) = &shared
                && !may_take(runtime, topic, group).await?
            {
                return Ok(());
            }
            consumer.start(&runtime.supervisor, &runtime.shutdown);
            show_waiting(&consumer, &runtime.readiness);
            runtime.readiness.met("topics");
            let (readiness, draining) = (
                runtime.readiness.clone(),
                runtime.shutdown.draining().clone(),
            );
            runtime
                .supervisor
                .spawn("waiting", Policy::restart(), move |beat| {
                    beat.unlimited();
                    let (consumer, readiness) = (consumer.clone(), readiness.clone());
                    let shown = async move {
                        loop {
                            show_waiting(&consumer, &readiness);
                            tokio::time::sleep(LOOK_EVERY).await;
                        }
                    };
                    let draining = draining.clone();
                    async move {
                        draining.run_until_cancelled(shown).await;
                        Ok::<(), Infallible>(())
                    }
                });
            Ok(())
        })
        .await
}

/// Looks whether other consumers read a group before messages are taken from it: asks at a terminal, warns without one. A
/// service is never refused, as what it sees may be its own predecessor. False if the shutdown begins.
async fn may_take(runtime: &Runtime, topic: &Topic, group: &Group) -> Result<bool, StartError> {
    let draining = runtime.shutdown.draining();
    let is_at_terminal = io::stdin().is_terminal();
    let others = loop {
        let Some(found) = draining
            .run_until_cancelled(others(&runtime.broker, topic, group))
            .await
        else {
            return Ok(false);
        };
        match found {
            Ok(others) => break others,
            Err(BrokerError::UnknownTopic(_) | BrokerError::UnknownGroup { .. }) => {
                return Ok(true);
            }
            // The question must be asked, and nothing can be taken now.
            Err(error) if is_at_terminal && error.is_retryable() => {
                tracing::warn!(%error, "Redis unavailable; retrying");
            }
            Err(error) => {
                tracing::warn!(%group, %error, "cannot see whether other consumers read this group");
                return Ok(true);
            }
        }
    };
    if others.is_empty() {
        return Ok(true);
    }
    let names = listed(&others);
    if !is_at_terminal {
        tracing::warn!(
            %topic, %group, consumers = names,
            "other consumers read this group, did so within the last 30 s, or hold messages of it: \
             each message goes to one consumer only"
        );
        return Ok(true);
    }
    eprint!(
        "other consumers read group {group}, did so within the last 30 s, or hold messages of it: {names}. \
         Messages printed here are acknowledged and do not reach them. Continue? [y/N] "
    );
    // A thread of its own: a signal ends the process although nobody answers.
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        let read = io::stdin().lock().read_line(&mut answer);
        read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
    });
    match draining.run_until_cancelled(answer).await {
        None => Ok(false),
        Some(Ok(true)) => Ok(true),
        Some(_) => Err(StartError::Usage("nothing was read".to_owned())),
    }
}

/// Names the consumers of a group that were heard of lately or hold messages.
async fn others(
    broker: &Broker,
    topic: &Topic,
    group: &Group,
) -> Result<BTreeSet<String>, BrokerError> {
    let topic = broker.topic(topic).await?;
    let mut names = BTreeSet::new();
    for shard in topic.shards() {
        let consumers = broker.consumers(&topic, shard, group).await?;
        let is_there = |seen: &ConsumerInfo| seen.pending > 0 || seen.idle < HEARD_OF;
        names.extend(consumers.into_iter().filter(is_there).map(|seen| seen.name));
    }
    Ok(names)
}

/// Lists a few names, and says how many more there are.
fn listed(names: &BTreeSet<String>) -> String {
    let few: Vec<&str> = names.iter().take(LISTED).map(String::as_str).collect();
    match names.len() - few.len() {
        0 => few.join(", "),
        more => format!("{} and {more} more", few.join(", ")),
    }
}

/// Holds the role not ready while a subscription waits for its topic or group.
fn show_waiting(consumer: &Consumer, readiness: &Readiness) {
    match consumer.waiting().join("; ") {
        waiting if waiting.is_empty() => readiness.met("subscriptions"),
        waiting => readiness.wait_for("subscriptions", waiting),
    }
}

/// Makes the consumer that a configuration asks for.
fn of(runtime: &Runtime) -> Result<Consumer, StartError> {
    let refused = |error: &dyn std::fmt::Display| StartError::Refused(error.to_string());
    let mut builder = Consumer::builder(runtime.broker.clone()).metrics(runtime.metrics.clone());
    let config: &Config = &runtime.config;
    if config.consumer.subscriptions.is_empty() {
        let advice = "nothing to consume: configure [[consumer.subscriptions]], or name a --topic";
        return Err(refused(&advice));
    }
    for (index, wanted) in config.consumer.subscriptions.iter().enumerate() {
        let sink = sinks::build(&wanted.sink)
            .map_err(|error| refused(&format!("consumer.subscriptions[{index}].sink: {error}")))?;
        let (topic, group) = (wanted.topic.clone(), wanted.group.clone());
        builder = builder.subscription(
            Subscription::shared(topic, group, sink.into()).concurrency(wanted.concurrency),
        );
    }
    builder.build().map_err(|error| refused(&error))
}

/// Declares those topics of the subscriptions that the configuration describes and nobody has declared before. The
/// others are waited for.
async fn declare(runtime: &Runtime) -> Result<(), StartError> {
    let config = &runtime.config;
    let wanted = config.consumer.subscriptions.iter();
    let described = wanted.filter_map(|wanted| config.topics.get_key_value(&wanted.topic));
    let (broker, shutdown) = (&runtime.broker, &runtime.shutdown);
    Ok(role::declare_topics(broker, described, Declare::Create, shutdown).await?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_stand_before_or_after_the_verb() {
        Cli::command().debug_assert();
        for line in ["--namespace x run --topic t", "run --topic t --namespace x"] {
            let words = std::iter::once("lisa-consumer").chain(line.split(' '));
            let cli = Cli::try_parse_from(words).unwrap();
            assert_eq!(cli.flags.namespace.as_deref(), Some("x"));
        }
        assert!(Cli::try_parse_from(["lisa-consumer", "run", "--group", "g"]).is_err());
    }

    #[test]
    fn of_many_consumers_a_few_are_named() {
        let names = |count: usize| (0..count).map(|n| format!("c{n}")).collect();
        assert_eq!(listed(&names(1)), "c0");
        assert_eq!(listed(&names(5)), "c0, c1, c2, c3, c4");
        assert_eq!(listed(&names(7)), "c0, c1, c2, c3, c4 and 2 more");
    }
}
