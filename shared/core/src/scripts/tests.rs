//! Checks that a script's header, its body and its wrapper agree.

use super::*;
use crate::keys::{RegistryKeys, ShardKeys};

struct Shape {
    script: &'static Script,
    file: &'static str,
    keys: Vec<&'static str>,
    args: Vec<&'static str>,
    /// The number of ARGV that the header omits because every general script has them.
    common_args: usize,
}

fn shape<O: Operation>(file: &'static str) -> Shape {
    Shape {
        script: O::script(),
        file,
        keys: O::KEYS.iter().map(|(name, _)| *name).collect(),
        args: O::ARGS.to_vec(),
        common_args: 0,
    }
}

fn general<G: General>(file: &'static str) -> Shape {
    let group = G::OF_A_GROUP.then_some("group");
    Shape {
        script: G::script(),
        file,
        keys: Vec::new(),
        args: group.into_iter().chain(G::ARGS.iter().copied()).collect(),
        common_args: 2,
    }
}

macro_rules! shapes {
    (
        special { $($special:ty = $special_file:literal for $($special_role:ident)*;)+ }
        general { $($general:ty = $general_file:literal for $($general_role:ident)*;)+ }
    ) => {
        fn special() -> Vec<Shape> {
            vec![$(shape::<$special>(include_str!(concat!($special_file, ".lua")))),+]
        }

        fn generals() -> Vec<Shape> {
            vec![$(general::<$general>(include_str!(concat!($general_file, ".lua")))),+]
        }
    };
}
table::scripts!(shapes);

fn all() -> Vec<Shape> {
    special().into_iter().chain(generals()).collect()
}

/// Returns the names of KEYS or ARGV in the header, which must be numbered in order.
fn header_names<'a>(file: &'a str, array: &str, from: usize) -> Vec<&'a str> {
    let lines = file
        .lines()
        .filter_map(|line| line.strip_prefix(&format!("-- {array}[")));
    lines
        .enumerate()
        .map(|(index, line)| {
            let (number, rest) = line.split_once(']').expect("a closing bracket");
            assert_eq!(number, (index + from + 1).to_string(), "{line}");
            rest.split_whitespace().next().expect("a name")
        })
        .collect()
}

#[test]
fn header_and_wrapper_agree() {
    for shape in all() {
        let name = shape.script.name();
        assert_eq!(
            header_names(shape.file, "KEYS", 0),
            shape.keys,
            "KEYS of {name}"
        );
        assert_eq!(
            header_names(shape.file, "ARGV", shape.common_args),
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
    for shape in special()
        .into_iter()
        .filter(|shape| shape.script.name() != "declare")
    {
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
    let refused = ["send_plain", "send", "requeue", "put_schedule"];
    let readers = [
        "heads",
        "lookup",
        "page",
        "parked_keys",
        "stats",
        "walk",
        "examine",
    ];
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
    let groups = ["a", "b"].map(|group| group.parse().expect("valid"));
    let keys = ShardKeys::new(&namespace, &topic, shard, &groups);
    for (name, key) in super::general::SHARD {
        assert!(
            key(&keys).as_str().ends_with(&format!("}}:{name}")),
            "{name}"
        );
    }
    let view = keys.group(&groups[1]).expect("a group");
    for (name, key) in SendPlain::KEYS.iter().chain(AckPlain::KEYS) {
        let key = key(&view).as_str();
        let of_shard = key.ends_with(&format!("}}:{name}"));
        assert!(of_shard || key.ends_with(&format!("}}:{name}:b")), "{key}");
    }
    let registry = RegistryKeys::new(&namespace);
    for (name, key) in Heartbeat::KEYS {
        assert!(key(&registry).as_str().ends_with(name), "{name}");
    }
}

#[test]
fn a_whole_shard_is_its_own_keys_and_then_those_of_each_group_in_turn() {
    let namespace = crate::topic::Namespace::default();
    let topic = "t".parse().expect("valid");
    let groups = ["b", "a"].map(|group| group.parse().expect("valid"));
    let keys = ShardKeys::new(&namespace, &topic, crate::topic::Shard::new(0), &groups);
    let spelled: Vec<&str> = Call::<Stats>::keys(&keys)
        .into_iter()
        .filter_map(|key| key.as_str().strip_prefix("lisa:v1:{t:0}:"))
        .collect();
    let of_shard = "conf stats waiting payload meta merge left tomb wake bykey into";
    let of_group = |group: &str| {
        "ready retry attempts backlog parked holder garbage garbage_info garbage_hook"
            .split(' ')
            .map(|what| format!("{what}:{group}"))
            .collect::<Vec<_>>()
    };
    let mut expected: Vec<String> = of_shard.split(' ').map(String::from).collect();
    expected.extend(["b", "a"].into_iter().flat_map(of_group));
    assert_eq!(spelled, expected);
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

#[test]
fn the_page_about_the_lifecycle_names_each_script() {
    let page = include_str!("../../../docs/internals/lifecycle.md");
    let missing = all().into_iter().map(|shape| shape.script.name());
    let missing: Vec<_> = missing
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert_eq!(missing, [""; 0], "not in lifecycle.md");
}
