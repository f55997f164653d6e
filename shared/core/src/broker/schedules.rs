//! The times up to which schedules have fired, as Redis keeps them.

use crate::broker::{Broker, BrokerError};
use crate::scripts::{Fired, NoteFires};
use crate::time::UnixMs;

impl Broker {
    /// Records up to which times schedules have fired. Returns the recorded time of each, in order. A time goes back
    /// only if the rule of the schedule changes or Redis's clock goes back. A schedule that only asks changes nothing.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn note_fires(
        &self,
        fires: &[Fired<'_>],
    ) -> Result<Vec<Option<UnixMs>>, BrokerError> {
        self.run_on_registry(&NoteFires { fires }).await
    }
}
