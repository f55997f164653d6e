//! Checks that a script's header, its body and its wrapper say the same.

use super::*;
use crate::keys::{RegistryKeys, ShardKeys};

struct Shape {
    script: &'static Script,
    file: &'static str,
    keys: Vec<&'static str>,
    args: &'static [&'static str],
}

fn shape<O: Operation>(file: &'static str) -> Shape {
    Shape {
        script: O::script(),
        file,
        keys: O::KEYS.iter().map(|(name, _)| *name).collect(),
        args: O::ARGS,
    }
}

macro_rules! shapes {
    ($($operation:ty => $file:literal),+ $(,)?) => {
        vec![$(shape::<$operation>(include_str!(concat!($file, ".lua")))),+]
    };
}

fn all() -> Vec<Shape> {
    shapes![
        Ack => "ack_plain", Beat => "beat", Cancel => "cancel", Clean => "clean",
        Declare => "declare", DropConsumer => "drop_consumer", EnableNotices => "enable_notices",
        FinishNotice => "finish_notice", Lookup => "lookup",
        MoveDue => "move_due_plain", Pause => "pause", Purge => "purge", Reclaim => "reclaim",
        Register => "register", Requeue => "requeue", Reschedule => "reschedule",
        Send => "send_plain", Settle => "settle", Stats => "stats",
        TakeNotices => "take_notices",
    ]
}

/// The names that the header gives to KEYS or ARGV, which must be numbered in order.
fn header_names<'a>(file: &'a str, array: &str) -> Vec<&'a str> {
    let lines = file
        .lines()
        .filter_map(|line| line.strip_prefix(&format!("-- {array}[")));
    lines
        .enumerate()
        .map(|(index, line)| {
            let (number, rest) = line.split_once(']').expect("a closing bracket");
            assert_eq!(number, (index + 1).to_string(), "{line}");
            rest.split_whitespace().next().expect("a name")
        })
        .collect()
}

#[test]
fn header_and_wrapper_agree() {
    for shape in all() {
        let name = shape.script.name();
        assert_eq!(
            header_names(shape.file, "KEYS"),
            shape.keys,
            "KEYS of {name}"
        );
        assert_eq!(
            header_names(shape.file, "ARGV"),
            shape.args,
            "ARGV of {name}"
        );
        let title = shape.file.lines().nth(1).expect("a second line");
        assert!(title.starts_with(&format!("-- {name}: ")), "{title}");
        for what in ["-- Returns ", "-- Cost ", "-- Safe to repeat"] {
            assert!(shape.file.contains(what), "{name} lacks {what}");
        }
    }
}

#[test]
fn the_body_names_its_keys_as_the_header_does() {
    for shape in all() {
        let name = shape.script.name();
        let body: Vec<&str> = shape
            .file
            .lines()
            .filter(|line| !line.starts_with("--"))
            .collect();
        let body = body.join(" ");
        let (names, rest) = body
            .split_once("local ")
            .expect("locals")
            .1
            .split_once('=')
            .expect("values");
        let names: Vec<String> = names
            .split(',')
            .map(|name| name.trim().to_lowercase())
            .collect();
        assert_eq!(names, shape.keys, "{name}");
        let values: Vec<String> = (1..=shape.keys.len())
            .map(|n| format!("KEYS[{n}]"))
            .collect();
        assert!(rest.trim_start().starts_with(&values.join(", ")), "{name}");
        assert_eq!(
            body.matches("KEYS[").count(),
            shape.keys.len(),
            "{name} uses an index twice"
        );
    }
}

#[test]
fn only_scripts_that_need_memory_are_refused_without_it() {
    let refused = ["send_plain", "requeue"];
    let readers = ["lookup", "stats"];
    for shape in all() {
        let name = shape.script.name();
        let expected = match name {
            name if refused.contains(&name) => "#!lua",
            name if readers.contains(&name) => "#!lua flags=no-writes",
            _ => "#!lua flags=allow-oom",
        };
        assert_eq!(shape.script.text().lines().next(), Some(expected), "{name}");
    }
}

#[test]
fn a_key_is_found_by_its_name() {
    let namespace = crate::topic::Namespace::default();
    let topic = "t".parse().expect("valid");
    let shard = crate::topic::Shard::new(0);
    let keys = ShardKeys::new(&namespace, &topic, shard, &crate::topic::Group::default());
    for (name, key) in Send::KEYS.iter().chain(Settle::KEYS) {
        assert!(
            key(&keys).as_str().contains(&format!("}}:{name}")),
            "{name}"
        );
    }
    let registry = RegistryKeys::new(&namespace);
    for (name, key) in Beat::KEYS {
        assert!(key(&registry).as_str().ends_with(name), "{name}");
    }
}

#[test]
fn an_unexpected_reply_is_an_error() {
    assert!(Reply::new(Value::Nil).is_err());
    let reply = |values| Reply::new(Value::Array(values)).expect("an array");
    assert!(reply(vec![]).text().is_err());
    assert!(reply(vec![Value::Int(-1)]).number::<u64>().is_err());
    assert!(
        reply(vec![Value::BulkString(b"1e3".to_vec())])
            .number::<u64>()
            .is_err()
    );
    assert_eq!(
        reply(vec![Value::BulkString(b"17".to_vec())])
            .number::<u64>()
            .ok(),
        Some(17)
    );
}
