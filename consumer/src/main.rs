//! `lisa-consumer`: reads messages through consumer groups and delivers them to sinks.

use std::process::ExitCode;

use clap::Parser;
use lisa_consumer::cli::Cli;
use lisa_service::cli::escape_lines;
use lisa_service::role::block_on;
use mimalloc::MiMalloc;

/// Takes less CPU time than the allocator of glibc: see decision 0029.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match block_on(Cli::parse().execute()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lisa-consumer: {}", escape_lines(&error.to_string()));
            ExitCode::from(error.exit_code())
        }
    }
}
