//! Development mode: runs all roles in one process on a private Redis, and prints each delivery.
//!
//! One listener serves producer, manager and gateway. The first send to a topic declares it, and so does the first pull. A
//! consumer prints the messages of each topic as JSON lines on standard output; everything else goes to standard error. It has
//! a group of its own, so that it takes no messages from pulls and other consumers.

pub(crate) mod server;

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lisa_consumer::gateway::{Gateway, GatewayLimits, SqsOptions};
use lisa_consumer::sinks::stdout::StdoutSink;
use lisa_consumer::{Consumer, ConsumerError};
use lisa_core::broker::{Broker, Declare, TopicHandle};
use lisa_core::redis::RedisUrl;
use lisa_core::topic::{Group, TopicSettings};
use lisa_producer::{Producer, ProducerOptions};
use lisa_service::config::{Config, MAX_READERS, MAX_WAITING};
use lisa_service::metrics::Metrics;
use lisa_service::role::{Runtime, StartError};
use lisa_service::shutdown::{Hangup, Shutdown};
use lisa_service::spans::Spans;
use lisa_service::supervise::Policy;
use tokio::task::JoinSet;

use crate::combined;
use lisa_service::cli::remark;
use server::{PrivateServer, ServerError};

/// The group whose messages are printed. Each topic gets it.
const PRINTER: &str = "printer";
/// The topic of the message that `--demo` sends.
const DEMO_TOPIC: &str = "hello";

/// The options of development mode.
#[derive(Clone, Debug)]
pub struct DevOptions {
    /// The directory for the data of a private server; without it, the configured Redis is used.
    pub dir: Option<PathBuf>,
    /// True to send one message that is due in five seconds.
    pub demo: bool,
}

/// Runs all roles until a signal stops the process.
///
/// # Errors
/// [`StartError`]; [`StartError::Unavailable`] if no server was found, or it did not start.
pub async fn run(mut config: Config, options: DevOptions) -> Result<(), StartError> {
    let Some(dir) = &options.dir else {
        return relay(config, options.demo).await;
    };
    let unavailable = |error: ServerError| StartError::Unavailable(error.to_string());
    let mut server = PrivateServer::start(dir).await.map_err(unavailable)?;
    config.redis.url = RedisUrl::unix(server.socket());
    tracing::info!(server = %server.binary().display(), dir = %server.dir().display(), "started a private Redis");
    let restarts = async {
        loop {
            if let Err(error) = server.restart_when_it_ends().await {
                return unavailable(error);
            }
        }
    };
    let ended = tokio::select! {
        ended = relay(config, options.demo) => ended,
        error = restarts => Err(error),
    };
    server.stop().await;
    ended
}

/// Runs the three roles.
async fn relay(mut config: Config, with_demo: bool) -> Result<(), StartError> {
    for schedule in config.schedules.values() {
        let topic = config.topics.entry(schedule.topic.clone());
        topic.or_insert_with(|| config.topic_defaults.clone());
    }
    if with_demo {
        // Without other groups, nothing is left of its message.
        let mut settings = config.topic_defaults.clone();
        settings.groups.clear();
        let topic = DEMO_TOPIC.parse().expect("a valid name");
        config.topics.entry(topic).or_insert(settings);
    }
    config.manager.is_dev = true;
    add_printer(&mut config.topic_defaults);
    config.topics.values_mut().for_each(add_printer);
    // The process ends when its terminal closes.
    let shutdown = Shutdown::of_program(config.shutdown.grace, Hangup::End);
    let shutdown = shutdown.map_err(StartError::Signals)?;
    let runtime = Runtime::with_shutdown("manager+producer+consumer", config, shutdown)?;
    let options = ProducerOptions {
        auto_create: Some(runtime.config.topic_defaults.clone()),
        metrics: Some(runtime.metrics.clone()),
        spans: runtime.spans.clone(),
        ..ProducerOptions::default()
    };
    let producer = Producer::with_options(runtime.broker.clone(), options);
    let begin = async |runtime: &Runtime, address: SocketAddr| {
        print_deliveries(runtime)?;
        let program = this_program();
        let base = runtime.config.http.url(address);
        remark(banner(&base, &runtime.config.redis.url, &program));
        if with_demo {
            demo(&producer).await;
        }
        Ok(())
    };
    let gateway = Gateway::new(
        runtime.broker.clone(),
        Some(runtime.metrics.clone()),
        GatewayLimits {
            max_waiting: MAX_WAITING,
            max_readers: MAX_READERS,
            body_timeout: runtime.config.http.body_timeout,
        },
        &runtime.shutdown,
    )
    .with_spans(runtime.spans.clone())
    .with_auto_create(runtime.config.topic_defaults.clone())
    .with_sqs(SqsOptions {
        producer: producer.clone(),
        group: Group::default(),
        create: runtime.config.topic_defaults.clone(),
        declared: runtime.config.topics.keys().cloned().collect(),
        ignore_attributes: true,
    });
    combined::run_with(runtime, Some(producer.clone()), Some(gateway), begin).await
}

/// Adds the group whose messages are printed.
fn add_printer(settings: &mut TopicSettings) {
    let printer = printer();
    if !settings.groups.contains(&printer) {
        settings.groups.push(printer);
    }
}

fn printer() -> Group {
    PRINTER.parse().expect("a valid name")
}

/// Starts the task that prints deliveries.
fn print_deliveries(runtime: &Runtime) -> Result<(), StartError> {
    let sink = StdoutSink::new(std::io::stdout())
        .map_err(|error| StartError::Refused(format!("cannot print deliveries: {error}")))?;
    let printer = Printer {
        broker: runtime.broker.clone(),
        metrics: runtime.metrics.clone(),
        spans: runtime.spans.clone(),
        shutdown: runtime.shutdown.clone(),
        sink,
    };
    runtime
        .supervisor
        .spawn("printer", Policy::restart(), move |heartbeat| {
            heartbeat.unlimited();
            printer.clone().run()
        });
    Ok(())
}

/// Prints the deliveries of every topic.
#[derive(Clone)]
struct Printer {
    broker: Broker,
    metrics: Metrics,
    spans: Option<Spans>,
    shutdown: Shutdown,
    sink: StdoutSink,
}

impl Printer {
    /// Watches the topics and runs a consumer for each, until the shutdown.
    async fn run(self) -> Result<(), ConsumerError> {
        let draining = self.shutdown.draining();
        let mut changes = self.broker.changes();
        let mut served = BTreeMap::new();
        let mut consumers = JoinSet::new();
        while !draining.is_cancelled() {
            // The consumer of a topic that was removed ends.
            served.retain(|topic, _| self.broker.known(topic).is_some());
            for topic in self.broker.known_topics() {
                if served.contains_key(topic.name()) {
                    continue;
                }
                self.join(&topic).await;
                let end = draining.child_token();
                let run = self.consumer(&topic)?.run();
                let run = run.with_graceful_shutdown(end.clone().cancelled_owned());
                consumers.spawn(run.into_future());
                served.insert(topic.name().clone(), end.drop_guard());
            }
            tokio::select! {
                _ = changes.changed() => {}
                Some(Ok(ended)) = consumers.join_next() => drop(ended?),
                () = draining.cancelled() => {}
            }
        }
        consumers.join_all().await;
        Ok(())
    }

    /// Adds the group to a topic that another process declared.
    async fn join(&self, topic: &TopicHandle) {
        if topic.groups().contains(&printer()) {
            return;
        }
        let mut settings = topic.settings().clone();
        add_printer(&mut settings);
        let declared = self
            .broker
            .declare(topic.name(), &settings, Declare::Update);
        if let Err(error) = declared.await {
            tracing::warn!(topic = %topic.name(), %error, "cannot add the group that prints deliveries");
        }
    }

    fn consumer(&self, topic: &TopicHandle) -> Result<Consumer, ConsumerError> {
        Consumer::builder(self.broker.clone())
            .group(PRINTER)
            .topic(topic.name().as_str(), self.sink.clone())
            .grace(self.shutdown.grace())
            .metrics(self.metrics.clone())
            .spans(self.spans.clone())
            .build()
    }
}

/// Sends a message that demonstrates a delayed delivery.
async fn demo(producer: &Producer) {
    let hello =
        serde_json::json!({"text": "sent when this process started, due five seconds later"});
    match producer
        .send(DEMO_TOPIC, &hello)
        .delay(Duration::from_secs(5))
        .await
    {
        Ok(receipt) => remark(format_args!(
            "sent a message to topic {DEMO_TOPIC}: {}\n",
            receipt.id
        )),
        Err(error) => tracing::warn!(%error, "cannot send the demo message"),
    }
}

/// Returns the word that starts this program again from a shell in any directory.
fn this_program() -> String {
    let typed = std::env::args_os().next().unwrap_or_default();
    shell_word(Path::new(&typed), std::env::current_exe().ok().as_deref())
}

/// Returns the shell word for a program: its name as typed if that was found on PATH, else its location.
fn shell_word(typed: &Path, location: Option<&Path>) -> String {
    let is_on_path = typed.components().count() == 1;
    let word = match location {
        Some(location) if !is_on_path => location,
        _ => typed,
    };
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if word.chars().all(is_plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn banner(base: &str, redis: &RedisUrl, program: &str) -> String {
    format!(
        "\nlisa: producer, manager and consumer in one process, on {redis}\n\n\
         Send a message that is due in five seconds:\n\n  \
         curl -d '{{\"order\": 7}}' -H 'Content-Type: application/json' -H 'Lisa-Delay: 5s' \
         {base}/v1/topics/orders/messages\n\n\
         Look at the messages in a browser:\n\n  \
         {base}/\n\n\
         Count them:\n\n  \
         {program} stats --redis-url '{redis}'\n\n\
         Pull a message, as a worker does:\n\n  \
         curl -d '{{\"wait\": \"30s\"}}' {base}/v1/topics/orders/groups/default/pull\n\n\
         Each message is also printed below as one line of JSON. Press Ctrl-C to stop.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_typed_in_any_folder() {
        let word = |typed: &str, at: &str| shell_word(Path::new(typed), Some(Path::new(at)));
        let installed = "/home/a/.cargo/bin/lisa-manager";
        assert_eq!(word("lisa-manager", installed), "lisa-manager");
        let built = "/src/target/debug/lisa-manager";
        assert_eq!(word("target/debug/lisa-manager", built), built);
        assert_eq!(word("./lisa-manager", "/b c/it's"), r"'/b c/it'\''s'");
        assert_eq!(shell_word(Path::new("/opt/lisa"), None), "/opt/lisa");
    }

    #[test]
    fn the_command_for_the_counts_names_the_program_and_its_redis() {
        let redis = "unix:///tmp/r.sock".parse().unwrap();
        let text = banner("http://127.0.0.1:7812", &redis, "/x/lisa-manager");
        let line = "/x/lisa-manager stats --redis-url 'unix:///tmp/r.sock?db=0'";
        assert!(text.contains(line), "{text}");
    }
}
