//! Appends to streams that are not the relay's own.

use std::time::Duration;

use redis::cmd;

use super::{Connection, ConnectionError};

impl Connection {
    /// Appends an entry to a stream, and trims the stream to about `max_length` entries. If a reply is lost, the entry is
    /// appended again and may be in the stream twice.
    ///
    /// # Errors
    ///
    /// The last failure when `deadline` has passed, or immediately if the same request cannot succeed later.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not undo the command: Redis may have run it, or may still run it.
    pub async fn append<'f>(
        &self,
        stream: &str,
        max_length: Option<u64>,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
        deadline: Duration,
    ) -> Result<(), ConnectionError> {
        let mut command = cmd("XADD");
        command.arg(stream);
        if let Some(most) = max_length {
            command.arg("MAXLEN").arg("~").arg(most);
        }
        command.arg("*");
        for (name, value) in fields {
            command.arg(name).arg(value);
        }
        self.at(stream).call(&command, deadline).await.map(drop)
    }
}
