//! The relay that the verbs work on: directly through Redis, or through the HTTP interface of a running manager. Both ways
//! have the same results.

mod garbage;
mod messages;

use std::collections::BTreeMap;
use std::time::Duration;

use lisa_core::broker::EntryPosition;
use lisa_core::broker::{
    Broker, BrokerError, Checkup, GroupStats, Hint, InvalidCursor, Retirement, TopicStats,
};
use lisa_core::time::millis;
use lisa_core::topic::{Group, Topic};
use lisa_service::config::Loaded;
use lisa_service::http::auth::Scope;
use reqwest::Method;
use serde::Deserialize;
use tokio::time::sleep;

use super::client::Client;
use super::commands::{ALL_WITHIN, failed, nearest_topic};
use super::error::CliError;
use super::manager_flags::needs_redis;
use crate::operations::attention::{self, Attention, Limits};
use crate::operations::audit::{self, Action, AuditPage};
use crate::operations::choose_group::among;
use crate::operations::forecast::{self, ForecastView, Period};
use crate::operations::groups::{self, Dropped, GroupPaused, GroupRetired, left_of};
use crate::operations::history::{self, HistoryPeriod, HistoryView};
use crate::operations::newest_counts::{NewestCounts, newest_counts};
use crate::operations::parked_keys::{self, KeyList};
use crate::operations::snapshot::{self, SnapshotList};
use crate::operations::topics::{self, StatsList, TopicList, TopicPaused, stats_of_all};
use crate::operations::workers::{self, WorkersAndManagers};
use crate::recurring::{self, ScheduleList};
pub(crate) use messages::PageQuery;

/// The pause between two looks at a group that managers drop.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The relay that a verb works on.
pub(crate) enum Relay {
    /// Its Redis, with the local configuration in place of what only managers know.
    Redis { broker: Broker, loaded: Box<Loaded> },
    /// A running manager.
    Manager(Client),
}
use Relay::{Manager, Redis};

/// The counts in the view of a topic.
#[derive(Deserialize)]
struct WithStats {
    stats: TopicStats,
}

impl Relay {
    /// Returns the broker, for a verb that no route serves.
    ///
    /// # Errors
    /// There is only a manager.
    pub(crate) fn broker(&self, verb: &str) -> Result<&Broker, CliError> {
        match self {
            Redis { broker, .. } => Ok(broker),
            Manager(_) => Err(needs_redis(verb)),
        }
    }

    /// Counts the messages of all topics.
    pub(crate) async fn stats(&self) -> Result<StatsList, CliError> {
        match self {
            Redis { broker, .. } => Ok(stats_of_all(broker, ALL_WITHIN).await?),
            Manager(client) => client.get(&["stats"]).answer().await,
        }
    }

    /// Reads what needs attention, in all topics or in one.
    pub(crate) async fn attention(
        &self,
        topic: Option<&Topic>,
        limits: &Limits,
    ) -> Result<Attention, CliError> {
        match self {
            Redis { broker, .. } => Ok(attention::read(broker, topic, limits, ALL_WITHIN).await?),
            Manager(client) => {
                let call = client.get(&["attention"]).query("topic", topic);
                let call = call.query("late", Some(in_ms(limits.late)));
                let call = call.query("oldest", Some(in_ms(limits.oldest)));
                let call = call.query("garbage", Some(limits.garbage));
                let read: Attention = call.answer().await?;
                // The status follows from the troubles, whatever the server says.
                Ok(Attention::new(read.troubles, read.lost))
            }
        }
    }

    /// Reads the newest counts that the managers have written.
    pub(crate) async fn snapshot(&self) -> Result<SnapshotList, CliError> {
        match self {
            Redis { broker, .. } => Ok(snapshot::read(broker).await?),
            Manager(client) => client.get(&["stats", "snapshot"]).answer().await,
        }
    }

    /// Counts the messages of a topic.
    pub(crate) async fn topic_stats(&self, topic: &Topic) -> Result<TopicStats, CliError> {
        match self {
            Redis { broker, .. } => Ok(broker.stats(&*broker.topic(topic).await?).await?),
            Manager(client) => {
                let view: WithStats = client.get(&["topics", topic.as_str()]).answer().await?;
                Ok(view.stats)
            }
        }
    }

    /// Counts the messages of a group; `None` if the topic has no such group any more.
    pub(crate) async fn group_stats(
        &self,
        topic: &Topic,
        group: &Group,
    ) -> Result<Option<GroupStats>, CliError> {
        let mut groups = self.topic_stats(topic).await?.groups.into_iter();
        Ok(groups.find(|counts| counts.group == *group))
    }

    /// Reads the newest counts of all topics, or counts one. Through a manager, a topic that no manager has counted yet is
    /// missing.
    pub(crate) async fn newest_counts(
        &self,
        topic: Option<&Topic>,
    ) -> Result<NewestCounts, CliError> {
        if let Some(topic) = topic {
            let stats = self.topic_stats(topic).await?;
            let (managers, now) = match self {
                Redis { broker, .. } => (broker.managers().await?.len(), broker.now()),
                Manager(_) => {
                    let snapshot = self.snapshot().await?;
                    let read_at = snapshot.read_at.parse().unwrap_or_default();
                    (snapshot.managers, read_at)
                }
            };
            return Ok(NewestCounts {
                as_of: BTreeMap::from([(topic.clone(), now)]),
                list: StatsList {
                    topics: vec![stats],
                    managers: Some(managers),
                    missing: Default::default(),
                },
                age: Duration::ZERO,
            });
        }
        if let Redis { broker, .. } = self {
            return Ok(newest_counts(broker, ALL_WITHIN, |_| None).await?);
        }
        let snapshot = self.snapshot().await?;
        let as_of = |topic: &snapshot::SnapshotTopic| {
            Some((topic.stats.topic.clone(), topic.as_of.parse().ok()?))
        };
        Ok(NewestCounts {
            as_of: snapshot.topics.iter().filter_map(as_of).collect(),
            age: Duration::from_millis(snapshot.age_ms),
            list: StatsList {
                managers: Some(snapshot.managers),
                missing: topics::Missing {
                    damaged: snapshot.damaged,
                    ..Default::default()
                },
                topics: { snapshot.topics.into_iter() }
                    .map(|topic| topic.stats)
                    .collect(),
            },
        })
    }

    /// Forecasts what becomes due.
    pub(crate) async fn forecast(
        &self,
        topic: Option<&Topic>,
        period: Period,
    ) -> Result<ForecastView, CliError> {
        match self {
            Redis { broker, loaded } => {
                let topic = match topic {
                    Some(topic) => Some(broker.topic(topic).await?),
                    None => None,
                };
                let schedules = &loaded.config.schedules;
                Ok(forecast::forecast(broker, topic, period, None, schedules).await?)
            }
            Manager(client) => {
                let call = match topic {
                    Some(topic) => client.get(&["topics", topic.as_str(), "forecast"]),
                    None => client.get(&["forecast"]),
                };
                let call = call.query("for", Some(in_ms(period.within())));
                call.query("step", Some(in_ms(period.step())))
                    .answer()
                    .await
            }
        }
    }

    /// Reads the history of a topic, or of all topics together, in at most `most` steps.
    pub(crate) async fn history(
        &self,
        topic: Option<&Topic>,
        within: Option<Duration>,
        most: u64,
    ) -> Result<HistoryView, CliError> {
        match self {
            Redis { broker, loaded } => {
                let period = HistoryPeriod::new(within, loaded.config.manager.history, most)
                    .map_err(|error| CliError::Usage(format!("--for: {error}")))?;
                Ok(match topic {
                    Some(topic) => {
                        history::read(broker, &*broker.topic(topic).await?, period).await?
                    }
                    None => history::read_of_all(broker, period, ALL_WITHIN).await?,
                })
            }
            Manager(client) => {
                let call = match topic {
                    Some(topic) => client.get(&["topics", topic.as_str(), "history"]),
                    None => client.get(&["history"]),
                };
                let call = call.query("for", within.map(in_ms));
                let most = Some(most).filter(|most| *most != u64::MAX);
                call.query("steps", most).answer().await
            }
        }
    }

    /// Lists the topics.
    pub(crate) async fn topics(&self) -> Result<TopicList, CliError> {
        match self {
            Redis { broker, .. } => Ok(topics::list(broker).await?),
            Manager(client) => client.get(&["topics"]).answer().await,
        }
    }

    /// Finds a group of a topic by name; without a name, its only group.
    pub(crate) async fn group(
        &self,
        topic: &Topic,
        named: Option<&Group>,
    ) -> Result<Group, CliError> {
        let groups: Vec<Group> = match self {
            Redis { broker, .. } => broker.topic(topic).await?.groups().to_vec(),
            Manager(_) => {
                let groups = self.topic_stats(topic).await?.groups.into_iter();
                groups.map(|counts| counts.group).collect()
            }
        };
        let group = among(topic, &groups, named.map(Group::as_str)).map_err(failed)?;
        Ok(group.clone())
    }

    /// Lists the ordering keys that have parked messages.
    pub(crate) async fn keys(
        &self,
        topic: &Topic,
        group: &Group,
        page: &PageQuery<'_>,
    ) -> Result<KeyList, CliError> {
        let cursor = page.cursor.map(str::parse).transpose();
        let cursor = cursor.map_err(|error: InvalidCursor| CliError::Usage(error.to_string()))?;
        match self {
            Redis { broker, .. } => {
                let topic = broker.topic(topic).await?;
                Ok(parked_keys::list(broker, &topic, group, cursor, page.limit).await?)
            }
            Manager(client) => {
                page.of(client.get(&of_group(topic, group, &["keys"])))
                    .answer()
                    .await
            }
        }
    }

    /// Returns whether a manager runs.
    pub(crate) async fn has_manager(&self) -> Result<bool, CliError> {
        match self {
            Redis { broker, .. } => Ok(broker.has_manager().await?),
            Manager(_) => Ok(true),
        }
    }

    /// Pauses or resumes a topic.
    pub(crate) async fn pause(&self, topic: &Topic, paused: bool) -> Result<TopicPaused, CliError> {
        let word = if paused { "pause" } else { "resume" };
        match self {
            Redis { broker, .. } => {
                let handle = broker.topic(topic).await?;
                let action = Action::on_command_line(broker, word).topic(topic);
                let pause = broker.pause(&handle, paused);
                let changed = action.run(pause, |done| audit::changed(*done)).await?;
                Ok(TopicPaused {
                    topic: topic.clone(),
                    paused,
                    changed,
                })
            }
            Manager(client) => {
                client
                    .post(&["topics", topic.as_str(), word])
                    .answer()
                    .await
            }
        }
    }

    /// Pauses or resumes a group.
    pub(crate) async fn pause_group(
        &self,
        topic: &Topic,
        group: &Group,
        paused: bool,
    ) -> Result<GroupPaused, CliError> {
        let word = if paused { "pause" } else { "resume" };
        match self {
            Redis { broker, .. } => {
                let handle = broker.topic(topic).await?;
                let action = Action::on_command_line(broker, word)
                    .topic(topic)
                    .group(group);
                let pause = groups::pause(broker, &handle, group, paused);
                let done = action.run(pause, |done| audit::changed(done.changed));
                Ok(done.await?)
            }
            Manager(client) => client.post(&of_group(topic, group, &[word])).answer().await,
        }
    }

    /// Drains a group, marks it to be dropped, or cancels either.
    pub(crate) async fn retire(
        &self,
        topic: &Topic,
        group: &Group,
        how: Option<Retirement>,
    ) -> Result<GroupRetired, CliError> {
        let word = how.map_or("keep", Retirement::as_str);
        match self {
            Redis { broker, .. } => {
                let handle = broker.topic(topic).await?;
                let action = Action::on_command_line(broker, word)
                    .topic(topic)
                    .group(group);
                let retire = groups::retire(broker, &handle, group, how);
                Ok(action.run(retire, GroupRetired::outcome).await?)
            }
            Manager(client) => {
                let call = client.post(&of_group(topic, group, &[word]));
                let mut retired: GroupRetired = call.answer().await?;
                retired.stats = self.group_stats(topic, group).await?;
                Ok(retired)
            }
        }
    }

    /// Drops the messages of a group marked to be dropped, and removes it. A manager that is asked over HTTP does that by
    /// itself, within a minute; this waits for it.
    pub(crate) async fn drop_all(
        &self,
        topic: &Topic,
        group: &Group,
        left: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<Dropped, CliError> {
        if let Redis { broker, .. } = self {
            let topic = broker.topic(topic).await?;
            return Ok(groups::drop_all(broker, &topic, group, progress).await?);
        }
        loop {
            let Some(stats) = self.group_stats(topic, group).await? else {
                return Ok(Dropped {
                    messages: left,
                    gone: true,
                });
            };
            let messages = left.saturating_sub(left_of(&stats));
            if stats.retiring != Some(Retirement::Drop) {
                return Ok(Dropped {
                    messages,
                    gone: false,
                });
            }
            progress(messages);
            sleep(LOOK_EVERY).await;
        }
    }

    /// Examines a topic, and repairs it. A topic that cannot be examined does not stop the examination of others: returns
    /// the reason.
    pub(crate) async fn examine(
        &self,
        topic: &Topic,
        repair: bool,
    ) -> Result<Result<Checkup, String>, CliError> {
        match self {
            Redis { broker, .. } => {
                let examine = broker.examine_by_name(topic, repair);
                let examined = if repair {
                    let action = Action::on_command_line(broker, "repair").topic(topic);
                    action.run(examine, audit::repaired).await
                } else {
                    examine.await
                };
                match examined {
                    Err(error @ BrokerError::UnknownTopic(_)) => {
                        let suggestion = nearest_topic(broker, topic).await;
                        Ok(Err(format!("{error}{suggestion}")))
                    }
                    Err(error) if error.is_of_one_topic() => Ok(Err(format!("{topic}: {error}"))),
                    examined => Ok(Ok(examined?)),
                }
            }
            Manager(client) => {
                let topic = topic.as_str();
                let call = match repair {
                    true => client.post(&["topics", topic, "doctor", "repair"]),
                    false => {
                        let path = ["topics", topic, "doctor"];
                        client.call(Method::GET, &path, Scope::Operate)
                    }
                };
                match call.long().answer().await {
                    Err(CliError::Refused(no)) if no.code() == "unknown_topic" => {
                        Ok(Err(no.to_string()))
                    }
                    Err(CliError::Refused(no)) if no.code() == "internal" => {
                        Ok(Err(format!("{topic}: {no}")))
                    }
                    examined => Ok(Ok(examined?)),
                }
            }
        }
    }

    /// Returns the hints that concern all topics. Through a manager, they are those that it has added to every checkup.
    pub(crate) async fn common_hints(&self, checkups: &mut [Checkup]) -> Vec<Hint> {
        match self {
            Redis { broker, .. } => broker.common_hints().await,
            Manager(_) => {
                let mut common = Vec::new();
                for checkup in checkups {
                    let (of_all, of_topic) = std::mem::take(&mut checkup.hints)
                        .into_iter()
                        .partition(|hint| hint.is_common);
                    (common, checkup.hints) = (of_all, of_topic);
                }
                common
            }
        }
    }

    /// Lists managers and consumers.
    pub(crate) async fn workers(&self) -> Result<WorkersAndManagers, CliError> {
        match self {
            Redis { broker, .. } => Ok(WorkersAndManagers {
                managers: broker.managers().await?,
                list: workers::list(broker).await?,
            }),
            Manager(client) => client.get(&["workers"]).answer().await,
        }
    }

    /// Lists the schedules of the configuration.
    pub(crate) async fn schedules(&self) -> Result<ScheduleList, CliError> {
        match self {
            Redis { broker, loaded } => {
                Ok(recurring::view(broker, &loaded.config.schedules).await?)
            }
            Manager(client) => client.get(&["schedules"]).answer().await,
        }
    }

    /// Reads a page of the audit log.
    pub(crate) async fn audit(
        &self,
        cursor: Option<EntryPosition>,
        limit: usize,
    ) -> Result<AuditPage, CliError> {
        match self {
            Redis { broker, .. } => Ok(audit::page(broker, cursor, limit).await?),
            Manager(client) => {
                let call = client.get(&["audit"]).query("limit", Some(limit));
                call.query("cursor", cursor).answer().await
            }
        }
    }

    /// Adds the nearest registered topic to an error about an unknown one. A manager has done that already.
    pub(crate) async fn suggest_topic(&self, error: CliError) -> CliError {
        match self {
            Redis { broker, .. } => super::commands::suggest_topic(broker, error).await,
            Manager(_) => error,
        }
    }
}

/// Returns the path of a route of a group.
fn of_group<'a>(topic: &'a Topic, group: &'a Group, route: &[&'a str]) -> Vec<&'a str> {
    let path = ["topics", topic.as_str(), "groups", group.as_str()];
    path.into_iter().chain(route.iter().copied()).collect()
}

fn in_ms(duration: Duration) -> String {
    format!("{}ms", millis(duration))
}
