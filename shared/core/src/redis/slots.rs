//! The slots of a cluster: the map that `CLUSTER SLOTS` returns, and the addresses of redirections.

use redis::{Cmd, Value, cmd};

use super::address::Address;
use crate::crc16::SLOTS;

/// A range of slots, both ends included, and the node that serves them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) owner: Address,
}

/// Returns the command that asks a node for the slot map.
pub(super) fn slots() -> Cmd {
    let mut slots = cmd("CLUSTER");
    slots.arg("SLOTS");
    slots
}

/// Parses a reply to `CLUSTER SLOTS`. `asked` is the host that sent it, for nodes that do not know their own host.
/// Returns `None` if the reply contains no slots, or more than a cluster has.
pub(super) fn parse_slots(reply: &Value, asked: &str) -> Option<Vec<Range>> {
    let Value::Array(rows) = reply else {
        return None;
    };
    let ranges: Vec<Range> = rows
        .iter()
        .filter_map(|row| parse_row(row, asked))
        .collect();
    let slots = |range: &Range| usize::from(range.last.saturating_sub(range.first)) + 1;
    let all: usize = ranges.iter().map(slots).sum();
    (1..=usize::from(SLOTS)).contains(&all).then_some(ranges)
}

/// `[first, last, [host, port, ..], replicas..]`: <https://redis.io/docs/latest/commands/cluster-slots/>.
fn parse_row(row: &Value, asked: &str) -> Option<Range> {
    let Value::Array(fields) = row else {
        return None;
    };
    let [Value::Int(first), Value::Int(last), Value::Array(owner), ..] = fields.as_slice() else {
        return None;
    };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
    let [host, Value::Int(port), ..] = owner.as_slice() else {
        return None;
    };
    let host = match host {
        Value::Nil => asked,
        Value::BulkString(host) => match std::str::from_utf8(host).ok()? {
            "" => asked,
            "?" => return None,
            host => host,
        },
        _ => return None,
    };
    Some(Range {
        first: slot(first)?,
        last: slot(last)?,
        owner: (host.to_owned(), u16::try_from(*port).ok()?),
    })
}

/// Parses the address of a redirection: `host:port`, where an empty host stands for the one that was asked.
pub(super) fn parse_address(text: &str, asked: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host };
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(first: i64, last: i64, host: Value, port: i64) -> Value {
        let id = Value::BulkString(b"id".to_vec());
        let owner = Value::Array(vec![host, Value::Int(port), id]);
        Value::Array(vec![Value::Int(first), Value::Int(last), owner])
    }

    #[test]
    fn ranges_are_read_and_a_host_that_is_not_named_is_the_one_asked() {
        let host = |text: &str| Value::BulkString(text.into());
        let reply = Value::Array(vec![
            row(0, 99, host("10.0.0.1"), 7000),
            row(100, 200, Value::Nil, 7001),
            row(201, 300, host("?"), 7002),
            row(301, 16_384, host("10.0.0.1"), 7003),
        ]);
        let range = |first, last, host: &str, port| Range {
            first,
            last,
            owner: (host.to_owned(), port),
        };
        let expected = vec![
            range(0, 99, "10.0.0.1", 7000),
            range(100, 200, "seed", 7001),
        ];
        assert_eq!(parse_slots(&reply, "seed"), Some(expected));
        assert_eq!(parse_slots(&Value::Array(Vec::new()), "seed"), None);
        assert_eq!(parse_slots(&Value::Nil, "seed"), None);
        let twice = vec![row(0, 16_383, host("a"), 1), row(0, 0, host("b"), 1)];
        assert_eq!(parse_slots(&Value::Array(twice), "seed"), None);
    }

    #[test]
    fn the_address_of_a_redirection_may_lack_its_host() {
        let address = |text| parse_address(text, "asked");
        assert_eq!(address("h:7"), Some(("h".to_owned(), 7)));
        assert_eq!(address(":7"), Some(("asked".to_owned(), 7)));
        assert_eq!(address("::1:7"), Some(("::1".to_owned(), 7)));
        assert_eq!(address("h"), None);
        assert_eq!(address("h:x"), None);
    }
}
