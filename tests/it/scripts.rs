//! Each atomic operation by itself, on a real Redis: the state before and a call give an outcome and a keyspace. Every
//! test has a namespace of its own and ends with both sums of the conservation law.

mod ack;
mod beat;
mod cancel;
mod clean;
mod clock;
mod declare;
mod drop_consumer;
mod enable_notices;
mod finish_notice;
mod groups;
mod lookup;
mod memory;
mod move_due;
mod pause;
mod purge;
mod reclaim;
mod requeue;
mod reschedule;
mod send;
mod settle;
mod stats;
mod take_notices;
mod wake;
