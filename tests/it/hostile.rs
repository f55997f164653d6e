//! Hostile input to the listeners: half a request, too much of everything, and nonsense. Each is answered with a 4xx or
//! closed within a bound. The process stays small, and well-behaved clients are served meanwhile.
//!
//! The listener's own tests are beside its code; here are the real programs, with many clients at a time.

mod bodies;
mod browsers;
mod budget;
mod crowds;
mod framing;
mod halves;
mod heads;
mod logs;
mod pages;
mod teams;
mod tokens;
mod victim;

use lisa_tests::SOON;
use victim::{Answer, Victim};
