//! `lisa-producer`: accepts messages for later delivery.

use std::process::ExitCode;

use clap::Parser;
use lisa_producer::cli::Cli;
use lisa_service::cli::escape_lines;
use lisa_service::role::block_on;
use mimalloc::MiMalloc;

/// Takes less CPU time than the allocator of glibc: see decision 0029.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match block_on(Cli::parse().run()) {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("lisa-producer: {}", escape_lines(&error.to_string()));
            error.exit_code().into()
        }
    }
}
