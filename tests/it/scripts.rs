//! Each atomic operation by itself, on a real Redis: the state before and a call give an outcome and a keyspace. Every
//! test has a namespace of its own and ends with both sums of the conservation law.

mod ack;
mod beat;
mod cancel;
mod class;
mod clean;
mod clock;
mod copies;
mod declare;
mod drop_consumer;
mod enable_notices;
mod expiry;
mod fanout;
mod finish_notice;
mod gates;
mod general;
mod groups;
mod limits;
mod lookup;
mod memory;
mod merge;
mod move_due;
mod ordering;
mod pause;
mod purge;
mod reclaim;
mod replace;
mod requeue;
mod reschedule;
mod send;
mod settle;
mod stage;
mod stats;
mod take_notices;
mod wake;
