//! The integration tests of Lisa, in one binary.

mod harness;
