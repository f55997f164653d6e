//! The keys of connections to message brokers, which sinks and sources share. Checked without the network.

pub(crate) mod amqp;
pub(crate) mod kafka;
pub(crate) mod nats;
