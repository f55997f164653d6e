//! `lisa-producer`: accepts messages for later delivery.

use std::process::ExitCode;

use clap::Parser;
use lisa_producer::cli::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().run().await {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("lisa-producer: {error}");
            error.exit_code().into()
        }
    }
}
