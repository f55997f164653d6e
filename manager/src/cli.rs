//! The command line of `lisa-manager`: selects the verb and runs it.

mod args;
mod client;
mod commands;
mod error;
mod manager_flags;
mod manager_url;
mod operator;
mod setting;

use clap::CommandFactory;
use futures_util::FutureExt;
use lisa_service::cli::GlobalFlags;
use lisa_service::config::SinkSecrets::{self, Required, Unused};
use lisa_service::role::{self, Flags, Program};

pub use args::Cli;
use args::{DevArgs, JobsArgs, RunArgs, Verb};
use client::Client;
pub use error::CliError;
use manager_flags::{Access, ManagerFlags, not_through_manager};
use manager_url::ManagerUrl;

use crate::combined;
use crate::dev::{self, DevOptions};

impl Cli {
    /// Runs the verb that the command line names, and returns the exit code.
    ///
    /// # Errors
    /// [`CliError`]; the process should exit with its [`exit_code`](CliError::exit_code).
    pub async fn execute(self) -> Result<u8, CliError> {
        let Self {
            flags,
            through,
            verb,
        } = self;
        flags.output.check(verb.prints_list())?;
        let url = through.url(&flags, verb.without_relay())?;
        match verb {
            Verb::Run(args) => run(flags, args).await?,
            Verb::Dev(args) => dev(flags, args).await?,
            Verb::Operator(verb) => {
                let output = flags.output.clone();
                let client = client(flags, url, through.access);
                // Boxed: the futures of Redis and of an HTTP client are deeply nested types.
                let client = client.boxed_local().await?;
                verb.run(&client, &output).boxed_local().await?;
            }
            Verb::Check(args) => {
                let output = flags.output.clone();
                let client = client(flags, url, through.access);
                let client = client.boxed_local().await;
                return commands::check::check(client, &args, &output).await;
            }
            Verb::Size(args) => {
                let output = flags.output.clone();
                let client = match &args.topic {
                    None => None,
                    Some(_) => Some(client(flags, url, through.access).boxed_local().await?),
                };
                let sized = commands::size::size(client.as_ref(), &args, &output);
                sized.boxed_local().await?;
            }
            Verb::Healthcheck => {
                let loaded = role::prepare_verb(&role_flags(flags, Unused, Unused))?;
                commands::healthcheck::healthcheck(&loaded.config).await?;
            }
            Verb::Jobs(args) => jobs(flags, through, url, args).await?,
            Verb::Message(_) if url.is_some() => return Err(not_through_manager("this verb")),
            Verb::Message(verb) => {
                through.access.check_unused()?;
                let timeout = flags.timeout;
                let output = flags.output.clone();
                let loaded = role::prepare_verb(&role_flags(flags, Unused, Unused))?;
                let broker = role::connect(&loaded.config, timeout).await?;
                let done = verb.execute(broker, loaded.config, &output);
                return Ok(done.boxed_local().await?);
            }
            Verb::Config(verb) => {
                let overrides = flags.overrides();
                verb.execute("manager", flags.config, overrides, &flags.output)?;
            }
            Verb::Program(verb) => verb.execute(Self::command())?,
        }
        Ok(0)
    }
}

/// Returns the flags of a role. Says which secrets of sources, and of clients of Amazon SQS, it needs.
fn role_flags(flags: GlobalFlags, sources: SinkSecrets, aws: SinkSecrets) -> Flags {
    Flags {
        overrides: flags.overrides(),
        config: flags.config,
        sink_secrets: Unused,
        source_secrets: sources,
        aws_secrets: aws,
    }
}

async fn run(flags: GlobalFlags, args: RunArgs) -> Result<(), CliError> {
    let sources = match args.with_producer {
        true => Required,
        false => Unused,
    };
    let mut flags = role_flags(flags, sources, Unused);
    if let Some(listen) = args.listen {
        flags.overrides.insert("manager.listen".to_owned(), listen);
    }
    if args.allow_eviction {
        let name = "redis.allow_eviction".to_owned();
        flags.overrides.insert(name, "true".to_owned());
    }
    let with_producer = args.with_producer;
    let program = Program::prepare(combined::role(with_producer), flags, |_| {})?;
    let run = move |runtime| combined::run(runtime, with_producer);
    Ok(program.run(run).await?)
}

async fn dev(flags: GlobalFlags, args: DevArgs) -> Result<(), CliError> {
    let options = DevOptions {
        dir: flags.redis_url.is_none().then_some(args.dir),
        demo: args.demo,
    };
    let mut flags = role_flags(flags, Required, Required);
    if let Some(listen) = args.listen {
        flags.overrides.insert("manager.listen".to_owned(), listen);
    }
    let loaded = role::prepare(&flags)?;
    Ok(dev::run(loaded.config, options).await?)
}

/// Lists or runs the jobs of a manager: without an address, of the configured one.
async fn jobs(
    flags: GlobalFlags,
    through: ManagerFlags,
    url: Option<ManagerUrl>,
    args: JobsArgs,
) -> Result<(), CliError> {
    let (timeout, output) = (flags.timeout, flags.output.clone());
    let url = match (args.manager, url) {
        (Some(_), Some(_)) if through.url.is_some() => {
            let text = "use --manager or --url, not both".to_owned();
            return Err(CliError::Usage(text));
        }
        (Some(url), _) | (None, Some(url)) => url,
        (None, None) => {
            let loaded = role::prepare_verb(&role_flags(flags, Unused, Unused))?;
            ManagerUrl::of_listener(loaded.config.manager.listen, &loaded.config.http)
        }
    };
    let manager = Client::of_manager(url, through.access, timeout)?;
    commands::jobs::jobs(&manager, args.verb, &output).await
}

/// Returns a client of the manager at this URL, or of the routes in this process.
async fn client(
    flags: GlobalFlags,
    url: Option<ManagerUrl>,
    access: Access,
) -> Result<Client, CliError> {
    let timeout = flags.timeout;
    if let Some(url) = url {
        return Client::of_manager(url, access, timeout);
    }
    access.check_unused()?;
    let loaded = role::prepare_verb(&role_flags(flags, Unused, Unused))?;
    let broker = role::connect(&loaded.config, timeout).await?;
    Ok(Client::over_redis(broker, loaded))
}
