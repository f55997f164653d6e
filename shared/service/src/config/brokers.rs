//! The keys of connections to message brokers, which sinks and sources share. Checked without the network.

pub(super) mod amqp;
pub(super) mod kafka;
pub(super) mod nats;
