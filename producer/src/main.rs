//! `lisa-producer`: accepts messages for later delivery.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::Parser;
use lisa_producer::cli::Cli;
use lisa_service::cli::{escape_lines, remark};
use lisa_service::role::block_on;
use mimalloc::MiMalloc;

/// Takes less CPU time than the allocator of glibc: see shared/docs/internals/performance.md.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match block_on(Cli::parse().run()) {
        Ok(code) => code.into(),
        Err(error) => {
            remark(format_args!(
                "lisa-producer: {}",
                escape_lines(&error.to_string())
            ));
            error.exit_code().into()
        }
    }
}
