//! The command line of `lisa-consumer`, which runs a consumer as a process.
//!
//! Reads arguments and configuration, builds the sinks, and starts the library. Only the `stdout` sink writes to standard
//! output; logs never do.

mod programs;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::{self, BufRead, IsTerminal};
use std::time::Duration;

use axum::Router;
use clap::{Args, CommandFactory, Parser, Subcommand};
use lisa_core::broker::{Broker, BrokerError, ConsumerInfo, Declare};
use lisa_core::topic::SubscriptionGroup;
use lisa_core::topic::{Group, Topic, TopicSettings};
use lisa_producer::{Producer, ProducerOptions};
use lisa_service::cli::{ConfigVerb, GlobalFlags, ProgramVerb, prompt};
use lisa_service::config::{Config, SinkSecrets};
use lisa_service::role::{self, Flags, Program, Readiness, Runtime, StartError};
use lisa_service::supervise::Policy;
use serde_json::json;

use crate::Consumer;
use crate::Subscription;
use crate::gateway::{Gateway, GatewayLimits, SqsOptions};
use crate::internals::start_settings;
use crate::sinks;

/// The idle time below which a consumer counts as running.
const HEARD_OF: Duration = Duration::from_secs(30);
/// The largest number of consumer names in a message.
const LISTED: usize = 5;
/// The interval between checks whether a subscription still waits for its topic.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Read messages through consumer groups and deliver them to sinks
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 69 Redis unavailable, 78 wrong configuration
#[derive(Debug, Parser)]
#[command(name = "lisa-consumer", version, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    flags: GlobalFlags,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Consume until SIGTERM or SIGINT
    Run(RunArgs),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    #[command(flatten)]
    Program(ProgramVerb),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Print the messages of this topic that become due from now on, instead of the configured subscriptions
    #[arg(long)]
    topic: Option<Topic>,
    /// Read --topic as this group. Printed messages are acknowledged, so no other consumer of the group gets them.
    /// {instance} is a group of this process alone, which takes no messages from others
    #[arg(long, requires = "topic", default_value = "{instance}")]
    group: SubscriptionGroup,
    /// Read --group even if other consumers read it, without a question or a warning
    #[arg(long, requires = "topic")]
    yes: bool,
    /// Address of the listener for health checks and metrics; overrides consumer.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Run on a Redis that may evict keys and thereby lose messages
    #[arg(long)]
    allow_eviction: bool,
}

impl Cli {
    /// Runs the command line.
    ///
    /// # Errors
    /// [`StartError`], which has the exit code.
    pub async fn execute(self) -> Result<(), StartError> {
        self.flags.output.check(false)?;
        let mut overrides = self.flags.overrides();
        let args = match self.verb {
            Verb::Run(args) => args,
            Verb::Config(verb) => {
                return verb.execute("consumer", self.flags.config, overrides, &self.flags.output);
            }
            Verb::Program(verb) => {
                return verb.execute(Self::command()).map_err(StartError::Write);
            }
        };
        let mut set = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                overrides.insert(key.to_owned(), value);
            }
        };
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
        let is_printing = printed.is_some();
        set("consumer.subscriptions", printed);
        let flags = Flags {
            config: self.flags.config,
            overrides,
            source_secrets: SinkSecrets::Unused,
            ..Flags::default()
        };
        let adjust: fn(&mut Config) = match is_printing {
            // Another process has its address.
            true => |config| config.consumer.gateway = None,
            false => |_| {},
        };
        let program = Program::prepare("consumer", flags, adjust)?;
        programs::prepare(program.config()).await;
        program
            .run(move |runtime| serve(runtime, shared.clone()))
            .await
    }
}

/// Runs the configured subscriptions until the runtime ends.
///
/// # Errors
/// [`StartError`].
///
/// # Cancel safety
/// Dropping the future aborts all tasks. Deliveries in flight are reclaimed after their lease, each as a crash of its
/// message.
pub async fn run(runtime: Runtime) -> Result<(), StartError> {
    serve(runtime, None).await
}

/// Runs the configured subscriptions. If `shared` is set, first checks whether other consumers read that group.
async fn serve(runtime: Runtime, shared: Option<(Topic, Group)>) -> Result<(), StartError> {
    // A reload may have added the first one.
    programs::hide(&runtime.config);
    let consumer = of(&runtime)?;
    let gateway = gateway(&runtime).await?;
    runtime
        .readiness
        .wait_for("topics", "topics not declared yet");
    if let Some(consumer) = consumer.clone() {
        runtime.readiness.warn_with(move || consumer.warnings());
    }
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
            if let Some(gateway) = gateway {
                gateway.start(&runtime.supervisor);
                let draining = runtime.shutdown.draining();
                draining.run_until_cancelled(gateway.ready()).await;
            }
            let Some(consumer) = consumer else {
                // A consumer does the same.
                let (broker, shutdown) = (&runtime.broker, &runtime.shutdown);
                start_settings(&runtime.supervisor, broker, shutdown);
                runtime.readiness.met("topics");
                return Ok(());
            };
            consumer.start(&runtime.supervisor, &runtime.shutdown);
            show_waiting(&consumer, &runtime.readiness);
            runtime.readiness.met("topics");
            let (readiness, draining) = (
                runtime.readiness.clone(),
                runtime.shutdown.draining().clone(),
            );
            runtime
                .supervisor
                .spawn("waiting", Policy::restart(), move |heartbeat| {
                    heartbeat.unlimited();
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

/// Checks whether other consumers read a group before messages are taken from it. Asks at a terminal, and only warns without
/// one: a service is never refused, since it may see its own predecessor. Returns false if the shutdown begins.
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
            // The question must be asked, and no messages can be taken now.
            Err(error) if is_at_terminal && error.is_retryable() => {
                tracing::warn!(%error, "Redis unavailable; retrying");
            }
            Err(error) => {
                tracing::warn!(%group, %error, "cannot check whether other consumers read this group");
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
            "other consumers read this group, did so within the last 30 s, or hold its messages; \
             each message goes to only one consumer"
        );
        return Ok(true);
    }
    prompt(format_args!(
        "other consumers read group {group}, did so within the last 30 s, or hold its messages: {names}. \
         Messages printed here are acknowledged and do not reach them. Continue? [y/N] "
    ));
    // On its own thread, so that a signal ends the process even without an answer.
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        let read = io::stdin().lock().read_line(&mut answer);
        read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
    });
    match draining.run_until_cancelled(answer).await {
        None => Ok(false),
        Some(Ok(true)) => Ok(true),
        Some(_) => Err(StartError::Unconfirmed(
            "not confirmed; no messages were read".to_owned(),
        )),
    }
}

/// Returns the names of the consumers of a group that were active in the last 30 s or hold messages.
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

/// Lists the first [`LISTED`] names, and the number of the others.
fn listed(names: &BTreeSet<String>) -> String {
    let few: Vec<&str> = names.iter().take(LISTED).map(String::as_str).collect();
    match names.len() - few.len() {
        0 => few.join(", "),
        more => format!("{} and {more} more", few.join(", ")),
    }
}

/// Keeps the role not ready while a subscription waits for its topic or group.
fn show_waiting(consumer: &Consumer, readiness: &Readiness) {
    match consumer.waiting().join("; ") {
        waiting if waiting.is_empty() => readiness.met("subscriptions"),
        waiting => readiness.wait_for("subscriptions", waiting),
    }
}

/// Returns the settings of a topic that `CreateQueue` creates, which has the group of SQS clients.
fn with_group(defaults: &TopicSettings, group: &Group) -> TopicSettings {
    let mut settings = defaults.clone();
    if !settings.groups.contains(group) {
        settings.groups.push(group.clone());
    }
    settings
}

/// Creates the configured gateway, and serves its routes.
async fn gateway(runtime: &Runtime) -> Result<Option<Gateway>, StartError> {
    let config = &runtime.config;
    let Some(wanted) = &config.consumer.gateway else {
        return Ok(None);
    };
    let gateway = Gateway::new(
        runtime.broker.clone(),
        Some(runtime.metrics.clone()),
        GatewayLimits {
            max_waiting: wanted.max_waiting,
            max_readers: wanted.max_readers,
            body_timeout: config.http.body_timeout,
        },
        &runtime.shutdown,
    )
    .with_spans(runtime.spans.clone());
    let gateway = match &wanted.sqs {
        Some(sqs) => gateway.with_sqs(SqsOptions {
            producer: Producer::with_options(
                runtime.broker.clone(),
                ProducerOptions {
                    metrics: Some(runtime.metrics.clone()),
                    spans: runtime.spans.clone(),
                    ..ProducerOptions::default()
                },
            ),
            group: sqs.group.clone(),
            create: with_group(&config.topic_defaults, &sqs.group),
            declared: config.topics.keys().cloned().collect(),
            ignore_attributes: sqs.ignore_attributes,
        }),
        None => gateway,
    };
    let (router, description) = gateway.routes(&runtime.tokens);
    let router = lisa_service::http::with_description(router, &description, &runtime.tokens);
    runtime
        .listen_as("gateway http", wanted.listen, router)
        .await?;
    Ok(Some(gateway))
}

/// Builds the consumer of a configuration; `None` if there is only a gateway.
fn of(runtime: &Runtime) -> Result<Option<Consumer>, StartError> {
    let refused = |error: &dyn std::fmt::Display| StartError::Refused(error.to_string());
    let mut builder = Consumer::builder(runtime.broker.clone())
        .metrics(runtime.metrics.clone())
        .spans(runtime.spans.clone());
    let config: &Config = &runtime.config;
    if config.consumer.subscriptions.is_empty() && config.consumer.gateway.is_some() {
        return Ok(None);
    }
    if config.consumer.subscriptions.is_empty() {
        let advice = "nothing to consume: configure [[consumer.subscriptions]] or [consumer.gateway], or pass --topic";
        return Err(refused(&advice));
    }
    for (index, wanted) in config.consumer.subscriptions.iter().enumerate() {
        let sink = sinks::build(&wanted.sink, &config.namespace)
            .map_err(|error| refused(&format!("consumer.subscriptions[{index}].sink: {error}")))?;
        let topic = wanted.topic.clone();
        let subscription = match wanted.group.clone() {
            SubscriptionGroup::Named(group) => Subscription::new(topic, group, sink),
            SubscriptionGroup::Instance => {
                let group = runtime.instance_group(&topic);
                Subscription::new(topic, group, sink)
            }
        };
        let mut subscription = subscription.concurrency(wanted.concurrency);
        if let Some(topic) = &wanted.success_topic {
            subscription = subscription.success_topic(topic.clone());
        }
        if let Some(topic) = &wanted.garbage_topic {
            subscription = subscription.garbage_topic(topic.clone());
        }
        builder = builder.subscription(subscription);
    }
    builder.build().map(Some).map_err(|error| refused(&error))
}

/// Declares the topics of the subscriptions and of their callbacks that the configuration describes and that are not
/// declared yet. Subscriptions and callbacks wait for all other topics.
async fn declare(runtime: &Runtime) -> Result<(), StartError> {
    let config = &runtime.config;
    let wanted = config.consumer.subscriptions.iter();
    let wanted: BTreeSet<&Topic> = wanted
        .flat_map(|wanted| wanted.callback_topics().chain([&wanted.topic]))
        .collect();
    let described: Vec<_> = wanted
        .into_iter()
        .filter_map(|topic| config.topics.get_key_value(topic))
        .collect();
    let (broker, shutdown) = (&runtime.broker, &runtime.shutdown);
    Ok(role::declare_topics(broker, described, Declare::Create, shutdown).await?)
}

#[cfg(test)]
mod tests {
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
