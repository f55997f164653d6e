//! `lisa-manager`: command line → configuration → logs → roles → exit code.

use std::process::ExitCode;

use clap::Parser;
use lisa_manager::cli::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().execute().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lisa-manager: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
