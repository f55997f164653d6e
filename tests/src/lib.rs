//! The harness of Lisa's tests: private servers, alone, under Sentinel and as clusters, private message brokers, a fault
//! proxy, the real binaries as processes, a scriptable webhook target, snapshots of the keyspace. It holds no test and
//! knows no rule of the relay; those are in `it/`.
//!
//! A process or server ends when its value is dropped, and also when the test process is killed. A harness function
//! that cannot do its work panics with all it knows: a test has nothing better to do with the error.

pub mod cluster;
pub mod eventually;
pub mod http;
pub mod kafka;
pub mod lost_log;
pub mod nats;
mod packages;
pub mod port;
pub mod process;
pub mod proxy;
pub mod rabbitmq;
pub mod relay;
pub mod requests;
mod runtime;
pub mod scripts;
pub mod sentinel;
pub mod server;
pub mod site;
pub mod snapshot;
pub mod sqs;
pub mod stopwatch;
pub mod tls;
pub mod users;
mod ward;
pub mod webhook;
pub mod yardstick;

pub use cluster::Cluster;
pub use eventually::{SOON, eventually};
pub use http::Api;
pub use kafka::Kafka;
pub use nats::Nats;
pub use port::free_port;
pub use process::{Binary, Launch, Process};
pub use proxy::{FaultProxy, Mode};
pub use rabbitmq::RabbitMq;
pub use relay::Relay;
pub use requests::{Fate, Request, RequestProxy};
pub use sentinel::Sentinels;
pub use server::{Aof, Server};
pub use site::{Site, Topology};
pub use snapshot::Snapshot;
pub use stopwatch::{Stopwatch, unless_held_up};
pub use users::User;
pub use webhook::{Answer, Webhook};
