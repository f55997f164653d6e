//! The move tasks of SQS clients: what gateways note of them, so that each gateway can list and stop those of all.

use std::collections::BTreeMap;

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError};
use crate::scripts::StartMoveTask;

/// The most move tasks that are stored, running and ended.
pub const MAX_MOVE_TASKS: usize = 100;
/// The suffix of the field that tells a task to stop.
const STOP: &str = ":stop";
/// The field with the number of starts.
const STARTS: &str = ":starts";

/// All stored move tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveTasks {
    /// The tasks, by id.
    pub tasks: Vec<StoredMoveTask>,
    /// The number of tasks ever started. Pass it to [`Broker::start_move_task`].
    pub starts: u64,
}

/// A stored move task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMoveTask {
    /// Its id.
    pub id: String,
    /// The last note of its gateway.
    pub note: String,
    /// True if it is to stop.
    pub is_stopping: bool,
}

impl Broker {
    /// Returns all move tasks. Costs one read.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn move_tasks(&self) -> Result<MoveTasks, BrokerError> {
        let fields = self.fields(&self.inner.registry.move_tasks).await?;
        let mut fields: BTreeMap<String, String> = fields.into_iter().collect();
        let starts = fields.remove(STARTS);
        let starts = starts.and_then(|starts| starts.parse().ok());
        let stopping: Vec<String> = fields
            .keys()
            .filter_map(|field| field.strip_suffix(STOP).map(str::to_owned))
            .collect();
        fields.retain(|field, _| !field.ends_with(STOP));
        let task = |(id, note)| StoredMoveTask {
            is_stopping: stopping.contains(&id),
            id,
            note,
        };
        Ok(MoveTasks {
            tasks: fields.into_iter().map(task).collect(),
            starts: starts.unwrap_or_default(),
        })
    }

    /// Stores a new move task, unless another one has been started since the caller read all of them: `starts` is the number that it
    /// read. So the tasks that a caller has counted are still all of them. Returns true if the task is stored.
    ///
    /// # Errors
    /// [`BrokerError`]. The call can be repeated.
    pub async fn start_move_task(
        &self,
        id: &str,
        note: &str,
        starts: u64,
    ) -> Result<bool, BrokerError> {
        let start = StartMoveTask {
            id,
            state: note,
            starts,
        };
        self.run_on_registry(&start).await
    }

    /// Notes the state of a move task. Returns true if it is to stop.
    ///
    /// # Errors
    /// [`BrokerError`]. The call can be repeated.
    pub async fn note_move_task(&self, id: &str, note: &str) -> Result<bool, BrokerError> {
        let key = &self.inner.registry.move_tasks;
        let set = command("HSET", key).arg(&[id, note]);
        let _: u64 = self.ask(set).await?;
        let stop: u64 = self
            .ask(command("HEXISTS", key).arg(format!("{id}{STOP}")))
            .await?;
        Ok(stop == 1)
    }

    /// Stops a move task. Its gateway learns of it when it next notes the state of the task.
    ///
    /// # Errors
    /// [`BrokerError`]. The call can be repeated.
    pub async fn stop_move_task(&self, id: &str) -> Result<(), BrokerError> {
        let stop = command("HSET", &self.inner.registry.move_tasks)
            .arg(&[format!("{id}{STOP}"), "1".to_owned()]);
        let _: u64 = self.ask(stop).await?;
        Ok(())
    }

    /// Forgets move tasks.
    ///
    /// # Errors
    /// [`BrokerError`]. The call can be repeated.
    pub async fn forget_move_tasks(&self, ids: &[String]) -> Result<(), BrokerError> {
        if ids.is_empty() {
            return Ok(());
        }
        let fields = ids
            .iter()
            .flat_map(|id| [id.clone(), format!("{id}{STOP}")]);
        let drop = command("HDEL", &self.inner.registry.move_tasks).arg(fields.collect::<Vec<_>>());
        let _: u64 = self.ask(drop).await?;
        Ok(())
    }
}
