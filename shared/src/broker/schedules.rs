//! What Redis remembers of schedules: up to when each has fired.

use super::{Broker, BrokerError};
use crate::scripts::{Fired, NoteFires};
use crate::time::UnixMs;

impl Broker {
    /// Notes up to when schedules have fired, and gives what is noted of each then, in their order: never an earlier time
    /// than before, unless the rule is another one. One that only asks changes nothing.
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
