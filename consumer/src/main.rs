//! `lisa-consumer`: reads messages through consumer groups and hands them to sinks.

use std::process::ExitCode;

use clap::Parser;
use lisa_consumer::cli::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().execute().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lisa-consumer: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
