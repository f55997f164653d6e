//! Tests of the connection, against fake servers and against real ones.

mod codes;
mod mistaken;
mod real;
mod topology;
