//! The programs of Lisa, which this program is if it is started as `program manager` or `program consumer`.

use std::fmt::Display;
use std::iter::once;
use std::process::exit;

use clap::Parser;
use lisa_service::role::block_on;

/// Runs as `lisa-manager` with these arguments.
pub(crate) fn manager(arguments: impl Iterator<Item = String>) {
    let arguments = once("lisa-manager".to_owned()).chain(arguments);
    end(block_on(
        lisa_manager::cli::Cli::parse_from(arguments).execute(),
    ));
}

/// Runs as `lisa-consumer` with these arguments.
pub(crate) fn consumer(arguments: impl Iterator<Item = String>) {
    let arguments = once("lisa-consumer".to_owned()).chain(arguments);
    end(block_on(
        lisa_consumer::cli::Cli::parse_from(arguments).execute(),
    ));
}

fn end<T>(result: Result<T, impl Display>) {
    if let Err(error) = result {
        eprintln!("{error}");
        exit(1);
    }
}
