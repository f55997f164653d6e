//! One cell of the table: a topic in its own namespace, the process to kill behind a proxy that can hold it, and the
//! invariants at the end.

use super::super::deployment::Role;
use super::calls::Calls;
use crate::faults::role;
use lisa_core::broker::{Broker, Examination, Fault, Read, TopicHandle};
use lisa_core::topic::Shard;
use lisa_producer::Producer;
use lisa_service::config::{Config, LoadOptions};
use lisa_tests::relay::OF_SCHEDULES;
use lisa_tests::relay::ms;
use lisa_tests::snapshot::Content;
use lisa_tests::{Api, Binary, RequestProxy, SOON, Server, Snapshot, eventually, free_port};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

pub(super) const TOPIC: &str = "orders";
const SHARD: Shard = Shard::new(0);

/// The messages handled, each with its time in ms since the epoch.
pub(super) type Handled = Arc<Mutex<Vec<(String, u64)>>>;

pub(super) struct Cell<'s> {
    /// A readable description.
    pub(super) what: String,
    pub(super) calls: Arc<Calls>,
    pub(super) handled: Handled,
    server: &'s Server,
    proxy: RequestProxy,
    folder: TempDir,
    namespace: String,
    /// Further keys of the topic, in TOML.
    pub(super) topic: String,
    pub(super) lease: &'static str,
    pub(super) groups: &'static [&'static str],
    /// The group and the sink of a consumer process.
    pub(super) group: &'static str,
    pub(super) sink: String,
    /// Id to the earliest time at which it may be handled, ms since the epoch.
    expected: Mutex<BTreeMap<String, u64>>,
}

impl<'s> Cell<'s> {
    pub(super) async fn new(server: &'s Server, what: String) -> Self {
        let calls = Arc::new(Calls::default());
        let judge = calls.clone();
        let proxy = RequestProxy::start(server.port(), move |request| judge.judge(request)).await;
        Self {
            what,
            calls,
            handled: Handled::default(),
            server,
            proxy,
            folder: tempfile::tempdir().unwrap(),
            namespace: server.namespace("killed"),
            topic: String::new(),
            lease: "1s",
            groups: &["default"],
            group: "default",
            sink: r#"{ type = "stdout" }"#.to_owned(),
            expected: Mutex::default(),
        }
    }

    /// The configuration of a process that reaches Redis at this port. Leases and rounds are as short as they can be.
    fn toml(&self, redis: u16, listen: u16) -> String {
        let (namespace, groups, topic) = (&self.namespace, self.groups, &self.topic);
        let (group, sink, lease) = (self.group, &self.sink, self.lease);
        format!(
            r#"
            namespace = "{namespace}"
            [redis]
            url = "redis://127.0.0.1:{redis}"
            [producer]
            listen = "127.0.0.1:{listen}"
            [manager]
            listen = "127.0.0.1:{listen}"
            [manager.jobs]
            clean = "* * * * * *"
            statistics = "* * * * * *"
            [consumer]
            listen = "127.0.0.1:{listen}"
            [[consumer.subscriptions]]
            topic = "{TOPIC}"
            group = "{group}"
            concurrency = 4
            sink = {sink}
            [shutdown]
            grace = "300ms"
            [topics.{TOPIC}]
            groups = {groups:?}
            lease = "{lease}"
            max_attempts = 20
            retry = {{ base = "100ms", factor = 2.0, max = "1s" }}
            dedup_window = "1s"
            {topic}
            "#
        )
    }

    /// The configuration for roles in this process.
    pub(super) fn config(&self) -> Config {
        let file = self.folder.path().join("lisa.toml");
        std::fs::write(&file, self.toml(self.server.port(), free_port())).unwrap();
        let options = LoadOptions {
            file: Some(file),
            ..LoadOptions::default()
        };
        Config::load(options).unwrap()
    }

    fn launch(&self, binary: Binary, arguments: &[&str], redis: u16) -> Role {
        let port = free_port();
        let launch = binary.with(arguments.iter().copied());
        Role {
            process: launch.config(&self.toml(redis, port)).start(),
            api: Api::new(port),
        }
    }

    /// Starts the process that is to be killed.
    pub(super) fn victim(&self, binary: Binary) -> Role {
        self.launch_victim(binary, &["run"])
    }

    /// Starts a verb that is to be killed.
    pub(super) fn launch_victim(&self, binary: Binary, arguments: &[&str]) -> Role {
        self.launch(binary, arguments, self.proxy.port())
    }

    /// Starts it again, past the proxy.
    pub(super) async fn again(&self, binary: Binary) -> Role {
        let mut role = self.launch(binary, &["run"], self.server.port());
        role.ready().await;
        role
    }

    /// Runs a verb of an operator.
    pub(super) async fn verb(&self, arguments: &[&str]) {
        let mut role = self.launch(Binary::Manager, arguments, self.server.port());
        let status = role.process.wait_exit(SOON).await;
        assert_eq!(
            status.code(),
            Some(0),
            "{}: {}",
            self.what,
            role.process.stderr()
        );
    }

    /// Waits until the process is held at its call, and kills it there.
    ///
    /// # Panics
    /// Panics if it never makes the call.
    pub(super) async fn kill(&self, victim: &mut Role) {
        if self.proxy.held(SOON).await.is_none() {
            let (what, seen) = (&self.what, self.calls.seen());
            panic!("{what}: never called; {seen}\n{}", victim.process.stderr());
        }
        assert!(!victim.process.has_exited(), "{}", self.what);
        victim.process.kill9();
    }

    /// A consumer in this process that records the messages it handles.
    pub(super) async fn consumer(&self, config: &Config) -> role::Role {
        let handled = self.handled.clone();
        role::Role::consumer_of(config, &[TOPIC], move |delivery| {
            handled
                .lock()
                .unwrap()
                .push((delivery.id.to_string(), now_ms()));
        })
        .await
    }

    /// Adds a schedule whose latest time was missed by every process, and expects its message.
    pub(super) async fn miss(&mut self) {
        let rule = "0 0 0 1 1 *";
        self.topic = format!(
            "[schedules.yearly]\ntopic = \"{TOPIC}\"\ncron = \"{rule}\"\ncatch_up = \"365d\""
        );
        let mut note = redis::cmd("HSET");
        note.arg(format!("{}:v1:{{registry}}:schedules", self.namespace));
        note.arg("yearly").arg(format!("1 {rule} UTC"));
        let noted = note.exec_async(&mut self.server.connection().await).await;
        noted.unwrap();
        let year = jiff::Timestamp::now().strftime("%Y");
        self.expect(&format!("yearly:{year}0101T000000Z"), ms(0));
    }

    /// Does the same with a schedule that was created at run time.
    pub(super) async fn miss_stored(&mut self) {
        let definition =
            format!(r#"{{"topic": "{TOPIC}", "cron": "0 0 0 1 1 *", "catch_up": "365d"}}"#);
        let key = |name| format!("{}:v1:{{registry}}:{name}", self.namespace);
        let mut connection = self.server.connection().await;
        for (command, name, arguments) in [
            (
                "HSET",
                "schedule_definitions",
                ["yearly", definition.as_str()],
            ),
            (
                "HSET",
                "schedule_progress",
                ["yearly", "1 7 0 0 0 1 1 * UTC"],
            ),
            ("ZADD", "schedule_names", ["0", "yearly"]),
            ("ZADD", "fires", ["1", "yearly"]),
        ] {
            let mut store = redis::cmd(command);
            store.arg(key(name)).arg(&arguments);
            store.exec_async(&mut connection).await.unwrap();
        }
        let year = jiff::Timestamp::now().strftime("%Y");
        self.expect(&format!("yearly:{year}0101T000000Z"), ms(0));
    }

    /// Records that a message must be handled, and not before this delay from now.
    pub(super) fn expect(&self, id: &str, delay: Duration) {
        let earliest = now_ms() + u64::try_from(delay.as_millis()).unwrap();
        self.expected
            .lock()
            .unwrap()
            .insert(id.to_owned(), earliest);
    }

    /// Sends `count` messages due one after the other, of two ordering keys if `keyed`. They must be handled.
    pub(super) async fn send(&self, producer: &Producer, count: usize, keyed: bool) {
        for number in 0..count {
            let id = format!("{}-{number}", if number % 2 == 0 { "even" } else { "odd" });
            let delay = ms(30 * number as u64);
            self.expect(&id, delay);
            let send = producer.send_bytes(TOPIC, id.clone()).id(&id).delay(delay);
            let send = if keyed {
                send.key(if number % 2 == 0 { "even" } else { "odd" })
            } else {
                send
            };
            send.await.unwrap();
        }
    }

    /// Sends messages of both keys that are due only seconds later, behind those of [`Cell::send`]. They must be
    /// handled.
    pub(super) async fn send_later(&self, producer: &Producer) {
        for key in ["even", "odd"] {
            let (id, delay) = (format!("{key}-9"), ms(5000));
            self.expect(&id, delay);
            let send = producer.send_bytes(TOPIC, id.clone()).id(&id);
            send.delay(delay).key(key).await.unwrap();
        }
    }

    /// Expects that no message that was sent will be handled.
    pub(super) fn expect_nothing(&self) {
        self.expected.lock().unwrap().clear();
    }

    /// Asserts that no topic but that of the scene has keys, except for records of removals.
    pub(super) async fn assert_only_its_topic_has_keys(&self) {
        let mut connection = self.server.connection().await;
        let namespace = self.config().namespace.to_string();
        let snapshot = Snapshot::take(&mut connection, &namespace).await.unwrap();
        let own = format!("v1:{{{TOPIC}:");
        let foreign = snapshot.iter().filter(|(key, _)| {
            !key.starts_with(&own) && !key.starts_with("v1:{registry}") && !key.ends_with(":conf")
        });
        let foreign: Vec<_> = foreign.map(|(key, _)| key).collect();
        assert!(foreign.is_empty(), "{}: {foreign:?}", self.what);
    }

    /// The topic, as a broker knows it.
    pub(super) async fn handle(&self, broker: &Broker) -> Arc<TopicHandle> {
        broker.topic(&TOPIC.parse().unwrap()).await.unwrap()
    }

    /// Waits until the topic is there.
    pub(super) async fn declared(&self, broker: &Broker) {
        let topic = TOPIC.parse().unwrap();
        eventually(SOON, async || broker.topic(&topic).await.map(drop)).await;
    }

    /// Waits until this many processes have their own group.
    pub(super) async fn joined(&self, broker: &Broker, count: usize) {
        eventually(SOON, async || {
            let topic = self.handle(broker).await;
            let stats = broker.stats(&topic).await.unwrap();
            let of_processes = stats.groups.iter().filter(|group| group.instance);
            if of_processes.count() == count {
                Ok(())
            } else {
                Err(format!("{}: {stats:#?}", self.what))
            }
        })
        .await;
    }

    /// Waits until this many messages can be read.
    pub(super) async fn ready(&self, broker: &Broker, count: usize) {
        let topic = self.handle(broker).await;
        eventually(SOON, async || {
            let stats = broker.stats(&topic).await.unwrap();
            if stats.groups[0].ready == count as u64 {
                Ok(())
            } else {
                Err(format!("{}: {stats:#?}", self.what))
            }
        })
        .await;
    }

    /// Takes messages for a consumer that is gone then.
    pub(super) async fn take(&self, broker: &Broker, count: usize) -> Vec<Read> {
        let topic = self.handle(broker).await;
        let server = broker.connection().any();
        let mut reader = eventually(SOON, async || server.reader().await).await;
        let mut taken = Vec::new();
        let group = &topic.groups()[0];
        while taken.len() < count {
            let read = broker.read(&mut reader, &topic, SHARD, group, "ghost", count, ms(500));
            taken.extend(read.await.unwrap());
        }
        taken
    }

    /// Waits until every message was handled and none is on its way; then checks the results. No message may be handled
    /// more often than `most` times; with `keyed`, those of a key came in their order.
    pub(super) async fn finish(&self, broker: &Broker, garbage: usize, most: usize, keyed: bool) {
        let what = &self.what;
        let topic = self.handle(broker).await;
        let expected = self.expected.lock().unwrap().clone();
        let stats = eventually(SOON, async || {
            let stats = broker.stats(&topic).await.unwrap();
            let on_the_way = |g: &lisa_core::broker::GroupStats| {
                g.backlog + g.parked + g.ready + g.in_flight + g.retry
            };
            let left = stats.waiting + stats.groups.iter().map(on_the_way).sum::<u64>();
            let handled = self.handled.lock().unwrap().clone();
            let missing: Vec<_> = expected
                .keys()
                .filter(|id| !handled.iter().any(|(of, _)| of == *id))
                .collect();
            let in_garbage: u64 = stats.groups.iter().map(|group| group.garbage).sum();
            if left == 0 && missing.is_empty() && in_garbage == garbage as u64 {
                Ok(stats)
            } else {
                Err(format!("{what}: missing {missing:?}, {stats:#?}"))
            }
        })
        .await;
        assert_eq!(stats.conservation_error, 0, "{what}: {stats:#?}");
        assert_eq!(
            stats.counters.get("lost").copied().unwrap_or(0),
            0,
            "{what}: {stats:#?}"
        );
        let handled = self.handled.lock().unwrap().clone();
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        for (id, at) in &handled {
            let earliest = expected
                .get(id)
                .unwrap_or_else(|| panic!("{what}: {id} was handled"));
            assert!(at >= earliest, "{what}: {id} is {} ms early", earliest - at);
            *times.entry(id).or_default() += 1;
        }
        assert!(
            times.values().all(|count| *count <= most),
            "{what}: {handled:?}"
        );
        if keyed {
            for key in ["even", "odd"] {
                let mut order: Vec<&str> = handled
                    .iter()
                    .map(|(id, _)| id.as_str())
                    .filter(|id| id.starts_with(key))
                    .collect();
                order.dedup();
                assert!(order.is_sorted(), "{what}: {order:?}");
            }
        }
        let checkup = broker
            .examine(&topic, Examination::of(&topic, false))
            .await
            .unwrap();
        let is_known = checkup
            .findings
            .iter()
            .all(|finding| finding.fault == Fault::Consumer);
        assert!(is_known && checkup.unclear == 0, "{what}: {checkup:#?}");
        if garbage > 0 {
            self.verb(&["garbage", "purge", TOPIC, "--all", "--yes"])
                .await;
        }
        // Tombstones go a second after their message did.
        eventually(SOON, async || self.leftovers().await).await;
    }

    /// Checks that only settings, counters, the registry, and streams without entries are left.
    async fn leftovers(&self) -> Result<(), String> {
        let taken = Snapshot::take(&mut self.server.connection().await, &self.namespace).await;
        let snapshot = taken.unwrap();
        for (key, content) in snapshot.iter() {
            let kind = key.rsplit_once("}:").map_or(key, |(_, kind)| kind);
            let may_stay = match content {
                Content::Stream(_) if matches!(kind, "series" | "series15" | "failures") => true,
                Content::Stream(stream) => {
                    stream.entries.is_empty()
                        && stream.groups.values().all(|group| group.pending.is_empty())
                }
                _ => {
                    matches!(
                        kind,
                        "conf"
                            | "stats"
                            | "observed"
                            | "topics"
                            | "managers"
                            | "snapshot"
                            | "workers"
                    ) || OF_SCHEDULES.contains(&kind)
                }
            };
            if !may_stay {
                return Err(format!("{}: {key} is left:\n{snapshot}", self.what));
            }
        }
        Ok(())
    }
}

/// Redis's clock: it runs on this host.
pub(super) fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap()
}
