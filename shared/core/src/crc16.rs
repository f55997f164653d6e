//! The CRC16 of Redis Cluster, which determines the slot of a key and the route of a message.

/// The number of slots of a Redis Cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the CRC16 (XMODEM: polynomial 0x1021, start 0).
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |mut crc: u16, &byte| {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
        }
        crc
    })
}

/// Returns the slot of a key: that of its hash tag (the text in the first braces) if it has one, else of the whole key.
///
/// <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags>
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key
        .iter()
        .position(|&byte| byte == b'{')
        .map(|open| &key[open + 1..])
        .and_then(|rest| Some(&rest[..rest.iter().position(|&byte| byte == b'}')?]))
        .filter(|tag| !tag.is_empty());
    crc16(tag.unwrap_or(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot(b"123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot(b"lisa:v1:{orders:3}:conf"), slot(b"orders:3"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar"), crc16(b"foo{bar") % SLOTS);
    }
}
