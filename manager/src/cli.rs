//! The command line of `lisa-manager`: selects the verb and runs it.

mod args;
mod client;
mod commands;
mod error;
mod manager_flags;
mod manager_url;
mod relay;

use clap::CommandFactory;
use futures_util::FutureExt;
use lisa_core::state::State;
use lisa_service::config::SinkSecrets;
use lisa_service::role::{self, Flags, Runtime};

pub use args::Cli;
use args::{
    DevArgs, GarbageVerb, GroupsVerb, MessagesVerb, PauseArgs, StatsArgs, TopicsVerb, Verb,
};
use client::Client;
pub use error::CliError;
use manager_flags::needs_redis;
use relay::{PageQuery, Relay};

use crate::combined;
use crate::dev::{self, DevOptions};
use crate::operations::garbage;

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
        let token_file = through.token_file;
        if let Verb::Jobs(args) = verb {
            let url = match (args.manager, url) {
                (Some(_), Some(_)) if through.url.is_some() => {
                    return Err(CliError::Usage(
                        "use --manager or --url, not both".to_owned(),
                    ));
                }
                (Some(url), _) | (None, Some(url)) => url,
                (None, None) => role::prepare_verb(flags_of_role)?
                    .config
                    .manager
                    .listen
                    .into(),
            };
            let manager = Client::new(url, token_file, flags.timeout)?;
            let jobs = commands::jobs::jobs(&manager, args.verb, &flags.output);
            return jobs.await.map(|()| 0);
        }
        let relay = async {
            if let Some(url) = url {
                return Ok(Relay::Manager(Client::new(url, token_file, flags.timeout)?));
            }
            if token_file.is_some() {
                let text = "--token-file requires --url".to_owned();
                return Err(CliError::Usage(text));
            }
            let loaded = Box::new(role::prepare_verb(flags_of_role)?);
            let broker = role::connect(&loaded.config, flags.timeout).await?;
            Ok(Relay::Redis { broker, loaded })
        };
        // Boxed: the futures of Redis and of an HTTP client are deeply nested types.
        let relay = relay.boxed_local().await;
        if let Verb::Check(args) = verb {
            return commands::check::check(relay, &args, &flags.output).await;
        }
        let relay = relay?;
        let verb = match (verb, &relay) {
            (Verb::Message(verb), Relay::Redis { broker, loaded }) => {
                let (broker, config) = (broker.clone(), loaded.config.clone());
                let done = verb.execute(broker, config, &flags.output);
                return Ok(done.boxed_local().await?);
            }
            (Verb::Message(_), Relay::Manager(_)) => return Err(needs_redis("this verb")),
            (verb, _) => verb,
        };
        let output = &flags.output;
        let done = match verb {
            Verb::Run(_)
            | Verb::Dev(_)
            | Verb::Config(_)
            | Verb::Jobs(_)
            | Verb::Check(_)
            | Verb::Message(_)
            | Verb::Program(_) => Ok(()),
            Verb::Top(args) => commands::top::top(&relay, &args, output).await,
            Verb::Explain {
                topic,
                id,
                key,
                watch: true,
            } => commands::explain::watch(&relay, &topic, &id, key.as_ref(), output).await,
            Verb::Explain {
                topic,
                id,
                key,
                watch: false,
            } => commands::explain::explain(&relay, &topic, &id, key.as_ref(), output).await,
            Verb::Workers => commands::workers::workers(&relay, output).await,
            Verb::Stats(StatsArgs { snapshot: true }) => {
                commands::stats::snapshot(&relay, output).await
            }
            Verb::Stats(_) => commands::stats::stats(&relay, output).await,
            Verb::Tail(args) => commands::tail::tail(&relay, &args).await,
            Verb::Audit(args) => commands::audit::audit(&relay, &args, output).await,
            Verb::Topics {
                verb: None | Some(TopicsVerb::List),
            } => commands::topics(&relay, output).await,
            Verb::Topics {
                verb:
                    Some(TopicsVerb::Reshard {
                        topic,
                        shards,
                        no_wait,
                    }),
            } => {
                let broker = relay.broker("topics reshard")?;
                commands::reshard::reshard(broker, &topic, shards, !no_wait, output).await
            }
            Verb::Messages(MessagesVerb::List {
                topic,
                state,
                group,
                key,
                times,
                page,
            }) => match (key, state) {
                (Some(key), _) => commands::list_of_key(&relay, &topic, &key, &page, output).await,
                (None, state) => {
                    let state = state.unwrap_or(State::Waiting);
                    let times = times.into();
                    commands::list(&relay, &topic, group.as_ref(), state, times, &page, output)
                        .await
                }
            },
            Verb::Messages(MessagesVerb::Show { topic, id, key }) => {
                commands::show(&relay, &topic, &id, key.as_ref(), output).await
            }
            Verb::Garbage(GarbageVerb::List {
                topic,
                group,
                filter,
                times,
                page,
            }) => {
                let group = group.as_ref();
                commands::list_garbage(&relay, &topic, group, &filter, times, &page, output).await
            }
            Verb::Forecast(args) => commands::forecast::forecast(&relay, args, output).await,
            Verb::History(args) => commands::history::history(&relay, args, output).await,
            Verb::Keys {
                topic,
                group,
                limit,
                cursor,
            } => {
                let page = PageQuery {
                    limit: limit.into(),
                    cursor: cursor.as_deref(),
                };
                commands::keys(&relay, &topic, group.as_ref(), &page, output).await
            }
            Verb::Garbage(GarbageVerb::Errors { topic, group }) => {
                commands::errors(&relay, &topic, group.as_ref(), output).await
            }
            Verb::Garbage(GarbageVerb::Requeue(args)) => {
                commands::sweep(&relay, garbage::Verb::Requeue, args, output).await
            }
            Verb::Garbage(GarbageVerb::Purge(args)) => {
                commands::sweep(&relay, garbage::Verb::Purge, args, output).await
            }
            Verb::Garbage(GarbageVerb::Jobs) => commands::garbage_jobs::list(&relay, output).await,
            Verb::Garbage(GarbageVerb::Stop { job }) => {
                commands::garbage_jobs::stop(&relay, &job, output).await
            }
            Verb::Groups(GroupsVerb::List { topic }) => {
                commands::groups::list(&relay, topic.as_ref(), output).await
            }
            Verb::Groups(GroupsVerb::Drain(of)) => {
                commands::groups::drain(&relay, &of, output).await
            }
            Verb::Groups(GroupsVerb::Drop { of, yes }) => {
                commands::groups::drop_group(&relay, &of, yes, output).await
            }
            Verb::Groups(GroupsVerb::Keep(of)) => commands::groups::keep(&relay, &of, output).await,
            Verb::Schedules { .. } => commands::schedules(&relay, output).await,
            Verb::Doctor(args) => commands::doctor::examine(&relay, args, output).await,
            Verb::Pause(PauseArgs { topic, group }) => {
                commands::pause(&relay, &topic, group.as_ref(), true, output).await
            }
            Verb::Resume(PauseArgs { topic, group }) => {
                commands::pause(&relay, &topic, group.as_ref(), false, output).await
            }
        };
        match done {
            Err(error) => Err(relay.suggest_topic(error).await),
            Ok(()) => Ok(0),
        }
    }
}
