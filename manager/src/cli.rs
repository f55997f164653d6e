//! The command line of `lisa-manager`: selects the verb and runs it.

mod address;
mod args;
mod commands;
mod error;

use clap::CommandFactory;
use futures_util::FutureExt;
use lisa_core::state::State;
use lisa_service::config::SinkSecrets;
use lisa_service::role::{self, Flags, Runtime};

pub use args::Cli;
use args::{
    DevArgs, GarbageVerb, GroupsVerb, MessagesVerb, PauseArgs, StatsArgs, TopicsVerb, Verb,
};
pub use error::CliError;

use crate::combined;
use crate::dev::{self, DevOptions};
use crate::operations::garbage;

impl Cli {
    /// Runs the verb that the command line names, and returns the exit code.
    ///
    /// # Errors
    /// [`CliError`]; the process should exit with its [`exit_code`](CliError::exit_code).
    pub async fn execute(self) -> Result<u8, CliError> {
        let Self { flags, verb } = self;
        flags.output.check(verb.prints_list())?;
        let mut overrides = flags.overrides();
        match &verb {
            Verb::Config(verb) => {
                let done = verb.execute(flags.config, overrides, &flags.output);
                return Ok(done.map(|()| 0)?);
            }
            Verb::Program(verb) => return Ok(verb.execute(Self::command()).map(|()| 0)?),
            Verb::Run(args) => {
                if let Some(listen) = &args.listen {
                    overrides.insert("manager.listen".to_owned(), listen.clone());
                }
                if args.allow_eviction {
                    overrides.insert("redis.allow_eviction".to_owned(), "true".to_owned());
                }
            }
            Verb::Dev(DevArgs {
                listen: Some(listen),
                ..
            }) => {
                overrides.insert("manager.listen".to_owned(), listen.clone());
            }
            _ => {}
        }
        let flags_of_role = Flags {
            config: flags.config,
            overrides,
            sink_secrets: SinkSecrets::Unused,
            source_secrets: match &verb {
                Verb::Run(args) if args.with_producer => SinkSecrets::Required,
                Verb::Dev(_) => SinkSecrets::Required,
                _ => SinkSecrets::Unused,
            },
            aws_secrets: match &verb {
                Verb::Dev(_) => SinkSecrets::Required,
                _ => SinkSecrets::Unused,
            },
        };
        if let Verb::Run(args) = verb {
            let loaded = role::prepare(flags_of_role)?;
            let runtime = Runtime::start(combined::role(args.with_producer), loaded.config)?;
            return Ok(combined::run(runtime, args.with_producer)
                .await
                .map(|()| 0)?);
        }
        if let Verb::Dev(args) = verb {
            let loaded = role::prepare(flags_of_role)?;
            let options = DevOptions {
                dir: flags.redis_url.is_none().then_some(args.dir),
                demo: args.demo,
            };
            return Ok(dev::run(loaded.config, options).await.map(|()| 0)?);
        }
        if let Verb::Check(args) = verb {
            return commands::check::check(flags_of_role, flags.timeout, &args, &flags.output)
                .await;
        }
        let loaded = role::prepare_verb(flags_of_role)?;
        if let Verb::Jobs(args) = verb {
            let listen = loaded.config.manager.listen;
            let manager = args.manager.unwrap_or_else(|| listen.into());
            // Boxed: the future of an HTTP client is a deeply nested type.
            let jobs = commands::jobs::jobs(&manager, args.verb, flags.timeout, &flags.output);
            return jobs.boxed_local().await.map(|()| 0);
        }
        let broker = role::connect(&loaded.config, flags.timeout).await?;
        let output = &flags.output;
        let done = match verb {
            Verb::Run(_)
            | Verb::Dev(_)
            | Verb::Config(_)
            | Verb::Jobs(_)
            | Verb::Check(_)
            | Verb::Program(_) => Ok(()),
            Verb::Top(args) => commands::top::top(&broker, &args, output).await,
            Verb::Explain {
                topic,
                id,
                key,
                watch: true,
            } => commands::explain::watch(&broker, &topic, &id, key.as_ref(), output).await,
            Verb::Explain {
                topic,
                id,
                key,
                watch: false,
            } => commands::explain::explain(&broker, &topic, &id, key.as_ref(), output).await,
            Verb::Workers => commands::workers::workers(&broker, output).await,
            Verb::Stats(StatsArgs { snapshot: true }) => {
                commands::stats::snapshot(&broker, output).await
            }
            Verb::Stats(_) => commands::stats::stats(&broker, output).await,
            Verb::Tail(args) => commands::tail::tail(&broker, &args).await,
            Verb::Audit(args) => commands::audit::audit(&broker, &args, output).await,
            Verb::Topics {
                verb: None | Some(TopicsVerb::List),
            } => commands::topics(&broker, output).await,
            Verb::Topics {
                verb:
                    Some(TopicsVerb::Reshard {
                        topic,
                        shards,
                        no_wait,
                    }),
            } => commands::reshard::reshard(&broker, &topic, shards, !no_wait, output).await,
            Verb::Messages(MessagesVerb::List {
                topic,
                state,
                group,
                key,
                times,
                page,
            }) => match (key, state) {
                (Some(key), _) => commands::list_of_key(&broker, &topic, &key, &page, output).await,
                (None, state) => {
                    let state = state.unwrap_or(State::Waiting);
                    let times = times.into();
                    commands::list(&broker, &topic, group.as_ref(), state, times, &page, output)
                        .await
                }
            },
            Verb::Messages(MessagesVerb::Show { topic, id, key }) => {
                commands::show(&broker, &topic, &id, key.as_ref(), output).await
            }
            Verb::Garbage(GarbageVerb::List {
                topic,
                group,
                times,
                page,
            }) => {
                commands::list(
                    &broker,
                    &topic,
                    group.as_ref(),
                    State::Garbage,
                    times.into(),
                    &page,
                    output,
                )
                .await
            }
            Verb::Forecast(args) => {
                let schedules = &loaded.config.schedules;
                commands::forecast::forecast(&broker, args, schedules, output).await
            }
            Verb::History(args) => {
                let config = loaded.config.manager.history;
                commands::history::history(&broker, args, config, output).await
            }
            Verb::Keys {
                topic,
                group,
                limit,
                cursor,
            } => {
                let page = (limit.into(), cursor.as_deref());
                commands::keys(&broker, &topic, group.as_ref(), page, output).await
            }
            Verb::Garbage(GarbageVerb::Errors { topic, group }) => {
                commands::errors(&broker, &topic, group.as_ref(), output).await
            }
            Verb::Garbage(GarbageVerb::Requeue(args)) => {
                commands::sweep(&broker, garbage::Verb::Requeue, args, output).await
            }
            Verb::Garbage(GarbageVerb::Purge(args)) => {
                commands::sweep(&broker, garbage::Verb::Purge, args, output).await
            }
            Verb::Garbage(GarbageVerb::Jobs) => commands::garbage_jobs::list(&broker, output).await,
            Verb::Garbage(GarbageVerb::Stop { job }) => {
                commands::garbage_jobs::stop(&broker, &job, output).await
            }
            Verb::Groups(GroupsVerb::List { topic }) => {
                commands::groups::list(&broker, topic.as_ref(), output).await
            }
            Verb::Groups(GroupsVerb::Drain(of)) => {
                commands::groups::drain(&broker, &of, output).await
            }
            Verb::Groups(GroupsVerb::Drop { of, yes }) => {
                commands::groups::drop_group(&broker, &of, yes, output).await
            }
            Verb::Groups(GroupsVerb::Keep(of)) => {
                commands::groups::keep(&broker, &of, output).await
            }
            Verb::Schedules { .. } => commands::schedules(&broker, &loaded, output).await,
            Verb::Doctor(args) => commands::doctor::examine(&broker, args, output).await,
            Verb::Pause(PauseArgs { topic, group }) => {
                commands::pause(&broker, &topic, group.as_ref(), true, output).await
            }
            Verb::Resume(PauseArgs { topic, group }) => {
                commands::pause(&broker, &topic, group.as_ref(), false, output).await
            }
        };
        match done {
            Err(error) => Err(commands::suggest_topic(&broker, error).await),
            Ok(()) => Ok(0),
        }
    }
}
