//! The verbs for operators: their names, and the function behind each.

use clap::Subcommand;
use lisa_core::broker::Removal;
use lisa_core::names::TokenName;
use lisa_core::topic::{Group, ScheduleName, Topic};
use lisa_service::cli::{Format, Output};

use super::args::{
    AuditArgs, BackfillArgs, DoctorArgs, ForecastArgs, GarbageListArgs, GroupArgs, HistoryArgs,
    KeysArgs, ListArgs, MessageArgs, PauseArgs, ReshardArgs, StatsArgs, SweepArgs, TailArgs,
    TopArgs,
};
use super::client::Client;
use super::commands;
use super::error::CliError;
use super::setting::Setting;
use crate::operations::garbage;
use crate::operations::tokens::RotationStep;

/// A verb that asks a manager, or the same routes in this process.
#[derive(Debug, Subcommand)]
pub(crate) enum OperatorVerb {
    /// Count messages by topic, group and state
    ///
    /// OLDEST READY is the age of the oldest message that waits for a consumer. OVERDUE is the age of the oldest due message
    /// that no consumer holds, in any state. UNACCOUNTED is the number of messages that the counters miss; it must be 0
    Stats(StatsArgs),
    /// Show when messages become due, as bars
    ///
    /// Counts the topics with the most messages, on up to 64 shards. SCHEDULES is how often schedules (recurring messages) will
    /// send in a step; the column DUE does not include these messages
    Forecast(ForecastArgs),
    /// Show messages sent and acknowledged, lateness and age over time, of a topic or of all topics together
    ///
    /// P50 and P99 are the lateness of deliveries. An empty cell was not recorded, for example while no manager ran
    History(HistoryArgs),
    /// List the ordering keys with parked messages in a group, each with the message that blocks it
    Keys(KeysArgs),
    /// Show the groups with the oldest messages first, and refresh
    ///
    /// HELD BACK counts the messages in the backlog and the parked ones. OLDEST DUE is the age of the oldest due message that
    /// no consumer holds. SENT/S and ACKED/S are rates of the whole topic. Each refresh reads the counts that the managers write
    /// every 5 s, and omits a topic that no manager has counted yet. Without a manager, it counts all topics. With --topic, it
    /// counts that topic
    Top(TopArgs),
    /// List topics; show, create, change or remove one
    Topics {
        #[command(subcommand)]
        verb: Option<TopicsVerb>,
    },
    /// List messages, or show one
    #[command(subcommand)]
    Messages(MessagesVerb),
    /// Explain where a message is in each group, and why
    Explain {
        #[command(flatten)]
        of: MessageArgs,
        /// Check every second, and print each change until the message has ended
        #[arg(long)]
        watch: bool,
    },
    /// List, requeue or purge garbage (dead letters)
    #[command(subcommand, visible_aliases = ["dead-letters", "dlq"])]
    Garbage(GarbageVerb),
    /// List, drain, drop or keep groups
    #[command(subcommand)]
    Groups(GroupsVerb),
    /// Examine topics while they are in use, and repair them
    ///
    /// The exit code is 1 if a fault is left, or a topic could not be examined
    Doctor(DoctorArgs),
    /// List the running managers and the consumers of each group
    Workers,
    /// List schedules (recurring messages), show, create, change, remove, pause or run one
    Schedules {
        #[command(subcommand)]
        verb: Option<SchedulesVerb>,
    },
    /// List tokens; show, create, change, rotate or remove one, or show your own
    ///
    /// Requires the scope `tokens`, except whoami
    Tokens {
        #[command(subcommand)]
        verb: Option<TokensVerb>,
    },
    /// Print messages that become ready and failed attempts of a topic, one line of JSON each, until interrupted
    ///
    /// Changes nothing. The field event is ready, failed, garbage (the failed attempt moved the message to garbage) or missed: the
    /// number of events of a group that were over before they could be read; without a group, failures that are no longer kept.
    /// Uses one connection to Redis for each shard, or with --url one request to the manager at a time. If either becomes
    /// unavailable, it retries until interrupted
    Tail(TailArgs),
    /// List the actions of operators, newest first
    ///
    /// About 1000 are kept. VIA is http, dashboard, cli or sqs; WHO is the name of the token, or the user of the operating system
    Audit(AuditArgs),
    /// Pause a topic or one group: sends are accepted, nothing new becomes ready
    Pause(PauseArgs),
    /// Resume a paused topic or group
    Resume(PauseArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum TopicsVerb {
    /// List the topics; this is the default
    List {
        /// List only topics whose names start with this
        #[arg(long)]
        prefix: Option<Topic>,
    },
    /// Show a topic with all its settings
    Show {
        /// Topic
        topic: Topic,
    },
    /// Create a topic
    ///
    /// A setting that is not given has the value of topic_defaults in the managers' configuration. Pass --url, or the
    /// configuration of the managers with --config
    Create {
        /// Topic
        topic: Topic,
        /// Settings, named as under topics.NAME in the configuration, such as lease=1m groups=billing,audit retry.kind=fixed
        #[arg(value_name = "KEY=VALUE")]
        settings: Vec<Setting>,
    },
    /// Change settings of a topic, and keep the others
    ///
    /// Pass --url, or the configuration of the managers with --config
    Change {
        /// Topic
        topic: Topic,
        /// Settings to replace, such as lease=1m. An empty value restores the built-in default
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<Setting>,
    },
    /// Remove a topic
    ///
    /// A topic that has messages is not removed without --drain or --force. Managers do the work
    Remove {
        /// Topic
        topic: Topic,
        /// Refuse new messages, deliver those that are stored, and then remove the topic
        #[arg(long, conflicts_with = "force")]
        drain: bool,
        /// Remove the topic with all its messages
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation
        #[arg(long, requires = "force")]
        yes: bool,
    },
    /// Change the number of shards of a topic while it is in use, and wait until managers have migrated its messages
    Reshard(ReshardArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulesVerb {
    /// List the schedules: the time up to which each has sent, its next time, and what it missed; this is the default
    List {
        /// List only schedules whose names start with this
        #[arg(long)]
        prefix: Option<ScheduleName>,
    },
    /// Show a schedule with its definition and its next times
    Show {
        /// Schedule
        schedule: ScheduleName,
    },
    /// Create a schedule
    ///
    /// It begins now. Pass --url, or the configuration of the managers with --config
    Create {
        /// Schedule
        schedule: ScheduleName,
        /// Fields, named as under schedules.NAME in the configuration, such as topic=reports "cron=0 0 3 * * *" payload={}
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<Setting>,
    },
    /// Change fields of a schedule, and keep the others
    ///
    /// If its times change, it begins again now. Pass --url, or the configuration of the managers with --config
    Change {
        /// Schedule
        schedule: ScheduleName,
        /// Fields to replace, such as catch_up=6h. An empty value restores the default
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<Setting>,
    },
    /// Remove a schedule that was created at run time
    Remove {
        /// Schedule
        schedule: ScheduleName,
    },
    /// Pause a schedule
    Pause {
        /// Schedule
        schedule: ScheduleName,
    },
    /// Resume a paused schedule. Times that passed while it was paused are skipped
    Resume {
        /// Schedule
        schedule: ScheduleName,
    },
    /// Send one message of a schedule now
    Run {
        /// Schedule
        schedule: ScheduleName,
    },
    /// Send a message for each time of a schedule in a period of the past, unless there was one
    ///
    /// Can be repeated within the dedup window of the topic. Asks before it sends for more than 1,000 times
    Backfill(BackfillArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokensVerb {
    /// List the tokens, without their secrets; this is the default
    List {
        /// List only tokens whose names start with this
        #[arg(long)]
        prefix: Option<String>,
    },
    /// Show a token, without its secret
    Show {
        /// Token
        token: String,
    },
    /// Show the token that this command uses, with the part of its quotas that is used
    ///
    /// Requires --url, and a token with any scope
    Whoami,
    /// Create a token and print its secret, or change fields of one and keep the others
    ///
    /// All processes follow within 5 s. Pass --url, or the configuration of the managers with --config
    Put {
        /// Token
        token: TokenName,
        /// Fields, named as under auth.tokens in the configuration, such as scopes=send,read topics=shop-* expires=30d. A duration for
        /// expires counts from now. An empty value restores the default
        #[arg(value_name = "KEY=VALUE", required = true)]
        settings: Vec<Setting>,
    },
    /// Replace the secret of a token: print a new one, and accept the previous one until --finish
    ///
    /// Pass --url, or the configuration of the managers with --config
    Rotate {
        /// Token
        token: TokenName,
        /// Accept only the new secret
        #[arg(long, conflicts_with = "cancel")]
        finish: bool,
        /// Accept only the previous secret
        #[arg(long)]
        cancel: bool,
    },
    /// Remove a token that was created by call: all processes refuse it within 5 s
    ///
    /// Pass --url, or the configuration of the managers with --config
    Remove {
        /// Token
        token: TokenName,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum MessagesVerb {
    /// List messages of one state, or of one ordering key
    List(ListArgs),
    /// Show one message with its payload, and its state in each group
    Show(MessageArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum GarbageVerb {
    /// List messages in garbage, each with its reason and last error. With a filter, each page examines up to 5,000 messages, so
    /// a page other than the last may be short or empty
    List(GarbageListArgs),
    /// Group the errors of the newest 5,000 messages in garbage by text, ignoring numbers, ids and quoted text
    Errors {
        /// Topic
        topic: Topic,
        /// Group; required if the topic has several
        #[arg(long)]
        group: Option<Group>,
    },
    /// Deliver messages in garbage again, with their attempts reset. A filter, a time, --max or --rate starts a garbage job, which
    /// a manager runs
    Requeue(SweepArgs),
    /// Permanently remove messages in garbage. A filter, a time, --max or --rate starts a garbage job, which a manager runs
    Purge(SweepArgs),
    /// List the garbage jobs (requeues and purges by filter) with their progress
    Jobs,
    /// Stop a garbage job after its current batch
    Stop {
        /// Id of the job, as `garbage jobs` lists it
        job: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupsVerb {
    /// List groups with their counts, and whether the topic's settings name them
    List {
        /// List only the groups of this topic
        topic: Option<Topic>,
    },
    /// Send no new messages to a group, and remove it when its consumers have finished those it has
    Drain(GroupArgs),
    /// Remove a group, and permanently drop its messages
    Drop {
        #[command(flatten)]
        of: GroupArgs,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Cancel a drain or drop: the group gets the messages that become due from now on
    Keep(GroupArgs),
}

impl OperatorVerb {
    /// Returns whether the verb prints a list.
    pub(crate) fn prints_list(&self) -> bool {
        match self {
            Self::Stats(_)
            | Self::Forecast(_)
            | Self::History(_)
            | Self::Keys(_)
            | Self::Workers
            | Self::Audit(_)
            | Self::Messages(MessagesVerb::List(_))
            | Self::Garbage(
                GarbageVerb::List(_) | GarbageVerb::Errors { .. } | GarbageVerb::Jobs,
            )
            | Self::Groups(GroupsVerb::List { .. }) => true,
            Self::Topics { verb } => matches!(verb, None | Some(TopicsVerb::List { .. })),
            Self::Schedules { verb } => matches!(verb, None | Some(SchedulesVerb::List { .. })),
            Self::Tokens { verb } => matches!(verb, None | Some(TokensVerb::List { .. })),
            _ => false,
        }
    }

    /// Calls the routes, and prints the result.
    pub(crate) async fn run(self, client: &Client, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Stats(StatsArgs { snapshot: true }) => {
                commands::stats::snapshot(client, output).await
            }
            Self::Stats(_) => commands::stats::stats(client, output).await,
            Self::Forecast(args) => commands::forecast::forecast(client, &args, output).await,
            Self::History(args) => commands::history::history(client, &args, output).await,
            Self::Keys(args) => commands::keys(client, &args, output).await,
            Self::Top(args) => commands::top::top(client, &args, output).await,
            Self::Topics { verb } => match verb.unwrap_or(TopicsVerb::List { prefix: None }) {
                TopicsVerb::List { prefix } => {
                    commands::topics::list(client, prefix.as_ref(), output).await
                }
                TopicsVerb::Show { topic } => commands::topics::show(client, &topic, output).await,
                TopicsVerb::Create { topic, settings } => {
                    commands::topics::create(client, &topic, &settings, output).await
                }
                TopicsVerb::Change { topic, settings } => {
                    commands::topics::change(client, &topic, &settings, output).await
                }
                TopicsVerb::Remove {
                    topic,
                    drain,
                    force,
                    yes,
                } => {
                    let how = match (drain, force) {
                        (false, false) => None,
                        (true, _) => Some(Removal::Drain),
                        (false, true) => Some(Removal::Force),
                    };
                    commands::topics::remove(client, &topic, how, yes, output).await
                }
                TopicsVerb::Reshard(args) => {
                    commands::reshard::reshard(client, &args, output).await
                }
            },
            Self::Messages(MessagesVerb::List(args)) => commands::list(client, &args, output).await,
            Self::Messages(MessagesVerb::Show(of)) => commands::show(client, &of, output).await,
            Self::Explain { of, watch: false } => {
                commands::explain::explain(client, &of, output).await
            }
            Self::Explain { of, watch: true } => {
                commands::explain::watch(client, &of, output).await
            }
            Self::Garbage(verb) => match verb {
                GarbageVerb::List(args) => commands::list_garbage(client, &args, output).await,
                GarbageVerb::Errors { topic, group } => {
                    commands::errors(client, &topic, group, output).await
                }
                GarbageVerb::Requeue(args) => {
                    commands::sweep(client, garbage::Verb::Requeue, args, output).await
                }
                GarbageVerb::Purge(args) => {
                    commands::sweep(client, garbage::Verb::Purge, args, output).await
                }
                GarbageVerb::Jobs => commands::garbage_jobs::list(client, output).await,
                GarbageVerb::Stop { job } => {
                    commands::garbage_jobs::stop(client, &job, output).await
                }
            },
            Self::Groups(verb) => match verb {
                GroupsVerb::List { topic } => {
                    commands::groups::list(client, topic.as_ref(), output).await
                }
                GroupsVerb::Drain(of) => commands::groups::drain(client, &of, output).await,
                GroupsVerb::Drop { of, yes } => {
                    commands::groups::drop_group(client, &of, yes, output).await
                }
                GroupsVerb::Keep(of) => commands::groups::keep(client, &of, output).await,
            },
            Self::Doctor(args) => commands::doctor::examine(client, args, output).await,
            Self::Workers => commands::workers::workers(client, output).await,
            Self::Schedules { verb } => {
                let verb = verb.unwrap_or(SchedulesVerb::List { prefix: None });
                verb.run(client, output).await
            }
            Self::Tokens { verb } => {
                let verb = verb.unwrap_or(TokensVerb::List { prefix: None });
                verb.run(client, output).await
            }
            Self::Tail(_) if output.format == Format::Csv => {
                let why = "tail prints lines of JSON, no other format";
                Err(CliError::Usage(why.to_owned()))
            }
            Self::Tail(args) => commands::tail::tail(client, &args).await,
            Self::Audit(args) => commands::audit::audit(client, &args, output).await,
            Self::Pause(args) => commands::pause(client, "pause", &args, output).await,
            Self::Resume(args) => commands::pause(client, "resume", &args, output).await,
        }
    }
}

impl SchedulesVerb {
    async fn run(self, client: &Client, output: &Output) -> Result<(), CliError> {
        use commands::schedules;
        match self {
            Self::List { prefix } => schedules::list(client, prefix.as_ref(), output).await,
            Self::Show { schedule } => schedules::show(client, &schedule, output).await,
            Self::Create { schedule, settings } => {
                schedules::create(client, &schedule, &settings, output).await
            }
            Self::Change { schedule, settings } => {
                schedules::change(client, &schedule, &settings, output).await
            }
            Self::Remove { schedule } => schedules::remove(client, &schedule, output).await,
            Self::Pause { schedule } => schedules::pause(client, &schedule, true, output).await,
            Self::Resume { schedule } => schedules::pause(client, &schedule, false, output).await,
            Self::Run { schedule } => schedules::run(client, &schedule, output).await,
            Self::Backfill(args) => schedules::backfill(client, &args, output).await,
        }
    }
}

impl TokensVerb {
    async fn run(self, client: &Client, output: &Output) -> Result<(), CliError> {
        use commands::tokens;
        match self {
            Self::List { prefix } => tokens::list(client, prefix.as_deref(), output).await,
            Self::Show { token } => tokens::show(client, &token, output).await,
            Self::Whoami => tokens::whoami(client, output).await,
            Self::Put { token, settings } => tokens::put(client, &token, &settings, output).await,
            Self::Rotate {
                token,
                finish,
                cancel,
            } => {
                let step = match (finish, cancel) {
                    (true, _) => RotationStep::Finish,
                    (_, true) => RotationStep::Cancel,
                    (false, false) => RotationStep::Begin,
                };
                tokens::rotate(client, &token, step, output).await
            }
            Self::Remove { token } => tokens::remove(client, &token, output).await,
        }
    }
}
