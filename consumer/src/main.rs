//! `lisa-consumer`: reads messages through consumer groups and delivers them to sinks.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::Parser;
use lisa_consumer::cli::Cli;
use lisa_service::cli::{escape_lines, remark};
use lisa_service::role::block_on;
use mimalloc::MiMalloc;

/// Takes less CPU time than the allocator of glibc: see shared/docs/internals/performance.md.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match block_on(Cli::parse().execute()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            remark(format_args!(
                "lisa-consumer: {}",
                escape_lines(&error.to_string())
            ));
            ExitCode::from(error.exit_code())
        }
    }
}
