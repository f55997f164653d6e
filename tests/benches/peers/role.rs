//! The programs of Lisa, which this program is if it is started as `program manager` or `program consumer`.

use std::process::exit;

use clap::Parser;
use lisa_service::role::block_on;

/// Runs as `lisa-manager` with these arguments.
pub(crate) fn manager(arguments: impl Iterator<Item = String>) {
    let program = std::iter::once("lisa-manager".to_owned());
    let cli = lisa_manager::cli::Cli::parse_from(program.chain(arguments));
    if let Err(error) = block_on(cli.execute()) {
        eprintln!("lisa-manager: {error}");
        exit(1);
    }
}

/// Runs as `lisa-consumer` with these arguments.
pub(crate) fn consumer(arguments: impl Iterator<Item = String>) {
    let program = std::iter::once("lisa-consumer".to_owned());
    let cli = lisa_consumer::cli::Cli::parse_from(program.chain(arguments));
    if let Err(error) = block_on(cli.execute()) {
        eprintln!("lisa-consumer: {error}");
        exit(1);
    }
}
