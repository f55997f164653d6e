//! `lisa-producer`: accepts messages for later delivery.

use std::process::ExitCode;

use clap::Parser;
use lisa_producer::cli::Cli;
use lisa_service::role::block_on;
use mimalloc::MiMalloc;

/// Saves about 10 % of the CPU time of a delivery, compared with the allocator of glibc.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match block_on(Cli::parse().run()) {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("lisa-producer: {error}");
            error.exit_code().into()
        }
    }
}
