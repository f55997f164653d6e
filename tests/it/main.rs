//! The integration tests of Lisa, in one binary. This file is only the list of its parts.

mod consumer;
mod harness;
mod manager;
mod model;
mod producer;
mod scenarios;
mod scripts;
