//! The command line of `lisa-consumer`, and the consumer as a process of its own.
//!
//! Reads arguments and configuration, makes the sinks, and starts the library. Messages go to standard output only
//! if a sink says so; logs never do.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::Router;
use clap::{Args, Parser, Subcommand};
use lisa_shared::broker::Declare;
use lisa_shared::config::{Config, SubscriptionGroup};
use lisa_shared::role::{self, Flags, Runtime, StartError};
use lisa_shared::topic::Topic;
use serde_json::json;

use crate::consumer::Consumer;
use crate::sinks;
use crate::subscription::Subscription;

/// Reads messages through consumer groups and hands them to sinks.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 78 wrong configuration.
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
    /// Configuration file, TOML or YAML by its ending
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of Redis; wins over redis.url of the configuration
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
    /// Print the messages of this topic, instead of the configured subscriptions
    #[arg(long)]
    topic: Option<Topic>,
    /// The group to read --topic as
    #[arg(long, requires = "topic", default_value = "default")]
    group: SubscriptionGroup,
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
        let printed = args.topic.map(|topic| {
            json!([{"topic": topic, "group": args.group.to_string(), "sink": {"type": "stdout"}}]).to_string()
        });
        set("consumer.subscriptions", printed);
        let loaded = role::prepare(Flags {
            config: self.flags.config,
            overrides,
        })?;
        run(Runtime::start("consumer", loaded.config)?).await
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
            consumer.start(&runtime.supervisor, &runtime.shutdown);
            runtime.readiness.met("topics");
            Ok(())
        })
        .await
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
    for wanted in &config.consumer.subscriptions {
        let sink = sinks::build(&wanted.sink).map_err(|error| refused(&error))?;
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
}
