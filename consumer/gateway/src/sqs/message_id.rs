//! The `MessageId` of a message: a UUID. Clients send it back where SQS allows few other characters, such as in the `Id` of an
//! entry of a batch.

use lisa_core::message::MessageId;
use lisa_core::topic::Topic;
use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

/// Returns the UUID of a message: its id in another form if Lisa generated it, else a hash of the topic and the id. It is the
/// same at each send and receive, in every process.
pub(super) fn message_id(topic: &Topic, id: &MessageId) -> Uuid {
    id.as_uuid().unwrap_or_else(|| {
        // No part contains a NUL.
        let hash = Sha256::digest([topic.as_str(), id.as_str()].join("\0"));
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        Builder::from_custom_bytes(bytes).into_uuid()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_becomes_a_uuid_of_its_own_and_stays_it() {
        let topic = |name: &str| -> Topic { name.parse().unwrap() };
        let generated = MessageId::generate();
        let uuid = message_id(&topic("orders"), &generated);
        assert_eq!(uuid, message_id(&topic("other"), &generated));
        assert_eq!(MessageId::of_uuid(&uuid.to_string()), Some(generated));
        let own: MessageId = "order:7".parse().unwrap();
        let uuid = message_id(&topic("orders"), &own);
        // Constant: clients may have stored it.
        assert_eq!(uuid.to_string(), "e87a9db9-c557-8eea-b869-ee99889ef651");
        assert_eq!(uuid.get_version_num(), 8);
        assert_ne!(uuid, message_id(&topic("other"), &own));
    }
}
