//! Tests of the link: against a server that answers what it is told, and against real ones.

mod codes;
mod mistaken;
mod real;
mod topology;
