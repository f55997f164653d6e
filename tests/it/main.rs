//! The integration tests of Lisa, in one binary. This file is only the list of its parts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod book;
mod brokers;
mod consumer;
mod costs;
mod examples;
mod faults;
mod harness;
mod hostile;
mod listener_tls;
mod manager;
mod model;
mod mutants;
#[path = "../benches/report/plot.rs"]
mod plot;
mod plots;
mod producer;
mod programs;
mod reload;
mod removal;
mod reshard;
mod scenarios;
mod scripts;
mod testing;
mod topologies;
