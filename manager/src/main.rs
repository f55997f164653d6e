//! `lisa-manager`: command line → configuration → logs → roles → exit code.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// The nested future types of all verbs exceed the compiler's default limit.
#![recursion_limit = "256"]

use std::process::ExitCode;

use clap::Parser;
use lisa_manager::cli::Cli;
use lisa_service::cli::{escape_lines, remark};
use lisa_service::role::block_on;
use mimalloc::MiMalloc;

/// Takes less CPU time than the allocator of glibc: see shared/docs/internals/performance.md.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match block_on(Cli::parse().execute()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            remark(format_args!(
                "lisa-manager: {}",
                escape_lines(&error.to_string())
            ));
            ExitCode::from(error.exit_code())
        }
    }
}
