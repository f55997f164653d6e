//! The Redis commands that each role runs, so that a missing permission is found at start and not halfway through a script.
//! Redis checks each command of a script against the caller's permissions, and does not roll back.

use crate::durability::Durability;
use crate::keys::RegistryKeys;
use crate::redis::preflight::Permission;
use crate::redis::{Endpoint, Script};
use crate::scripts;
use crate::topic::Namespace;

/// A sample call of each command that any role runs; `KEY` stands for one of Lisa's keys.
const LINES: &[&[&str]] = &[
    &["DEL", "KEY"],
    &["EVALSHA", "sha", "1", "KEY"],
    &["EXISTS", "KEY"],
    &["HDEL", "KEY", "f"],
    &["HEXISTS", "KEY", "f"],
    &["HGET", "KEY", "f"],
    &["HGETALL", "KEY"],
    &["HINCRBY", "KEY", "f", "1"],
    &["HKEYS", "KEY"],
    &["HLEN", "KEY"],
    &["HMGET", "KEY", "f"],
    &["HSCAN", "KEY", "0"],
    &["HSET", "KEY", "f", "v"],
    &["HSTRLEN", "KEY", "f"],
    &["HVALS", "KEY"],
    &["PEXPIRE", "KEY", "1"],
    &["SET", "KEY", "v"],
    &["SPUBLISH", "KEY", "m"],
    &["SSUBSCRIBE", "KEY"],
    &["SCRIPT", "LOAD", "return 1"],
    &["TIME"],
    &["UNLINK", "KEY"],
    &["XACK", "KEY", "g", "1-1"],
    &["XADD", "KEY", "*", "f", "v"],
    &["XCLAIM", "KEY", "g", "c", "0", "1-1"],
    &["XDEL", "KEY", "1-1"],
    &["XGROUP", "CREATE", "KEY", "g", "0"],
    &["XGROUP", "DELCONSUMER", "KEY", "g", "c"],
    &["XGROUP", "SETID", "KEY", "g", "0"],
    &["XINFO", "CONSUMERS", "KEY", "g"],
    &["XINFO", "GROUPS", "KEY"],
    &["XINFO", "STREAM", "KEY"],
    &["XLEN", "KEY"],
    &["XPENDING", "KEY", "g"],
    &["XRANGE", "KEY", "-", "+"],
    &["XREADGROUP", "GROUP", "g", "c", "STREAMS", "KEY", ">"],
    &["XREVRANGE", "KEY", "+", "-"],
    &["ZADD", "KEY", "1", "m"],
    &["ZCARD", "KEY"],
    &["ZCOUNT", "KEY", "0", "1"],
    &["ZLEXCOUNT", "KEY", "-", "+"],
    &["ZMSCORE", "KEY", "m"],
    &["ZRANGE", "KEY", "0", "1"],
    &["ZRANK", "KEY", "m"],
    &["ZREM", "KEY", "m"],
    &["ZREMRANGEBYRANK", "KEY", "0", "1"],
    &["ZREMRANGEBYSCORE", "KEY", "0", "1"],
    &["ZSCAN", "KEY", "0"],
    &["ZSCORE", "KEY", "m"],
];

/// The additional role of a consumer that sends callbacks.
pub const CALLBACKS: &str = "callbacks";

/// The additional role of a consumer with a gateway, or with webhooks that are completed later.
pub const GATEWAY: &str = "gateway";

/// The additional role of a gateway that serves SQS clients, and so also sends, cancels, requeues, and removes topics.
pub const SQS: &str = "sqs";

/// The users of the command lines. No process checks their permissions at start.
const OPERATOR: &str = "operator";

/// Returns the permissions that the roles of a process need; `roles` as in `manager+producer`.
pub fn of_roles(roles: &str, namespace: &Namespace) -> Vec<Permission> {
    let mut needed: Vec<String> = ["EVALSHA", "SCRIPT LOAD", "TIME"].map(String::from).into();
    for role in roles.split('+') {
        needed.extend(of_role(role));
    }
    let key = sample_key(namespace);
    let is_needed = |line: &&&[&str]| {
        let both = line[..line.len().min(2)].join(" ");
        needed
            .iter()
            .any(|command| command == line[0] || *command == both)
    };
    let spelled = |word: &&str| {
        if *word == "KEY" {
            key.clone()
        } else {
            (*word).to_owned()
        }
    };
    LINES
        .iter()
        .filter(is_needed)
        .map(|line| Permission {
            command: line[0].to_owned(),
            args: line[1..].iter().map(spelled).collect(),
        })
        .collect()
}

/// Returns the additional permission that a send of this durability needs, if any.
pub fn of_durability(durability: Durability) -> Option<Permission> {
    let (command, args): (_, &[&str]) = match durability {
        Durability::Memory => return None,
        Durability::Aof => ("WAITAOF", &["1", "0", "1"]),
        Durability::Replicas(_) => ("WAIT", &["1", "1"]),
    };
    Some(Permission {
        command: command.to_owned(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
    })
}

/// Returns the permission that this kind of endpoint sometimes needs, and what happens without it.
pub fn of_endpoint(endpoint: &Endpoint) -> Option<(Permission, &'static str)> {
    let (command, use_of) = match endpoint {
        Endpoint::Tcp { .. } | Endpoint::Unix(_) => return None,
        Endpoint::Sentinel { .. } => (
            "ROLE",
            "without it, a former master is detected only when it rejects a write",
        ),
        Endpoint::Cluster { .. } => (
            "ASKING",
            "without it, calls to a slot fail while the slot moves to another node",
        ),
    };
    let permission = Permission {
        command: command.to_owned(),
        args: Vec::new(),
    };
    Some((permission, use_of))
}

/// Returns the commands that a role runs, those of its scripts included, with the subcommand where there is one.
fn of_role(role: &str) -> Vec<String> {
    let own = commands_of(role).iter().copied().map(String::from);
    let scripts = scripts::table::of_role(role).into_iter();
    own.chain(scripts.flat_map(commands_in)).collect()
}

/// Returns the commands that a role runs outside of scripts.
fn commands_of(role: &str) -> &'static [&'static str] {
    match role {
        "producer" => &[
            "HGETALL",
            "HKEYS",
            "HMGET",
            "XINFO GROUPS",
            "XPENDING",
            "XRANGE",
            "ZRANGE",
        ],
        "consumer" => &[
            "HDEL",
            "HGETALL",
            "HINCRBY",
            "HMGET",
            "HSET",
            "HSTRLEN",
            "XCLAIM",
            "XREADGROUP",
        ],
        GATEWAY => &["HGET", "SET", "SPUBLISH", "XPENDING"],
        SQS => &[
            "HGET",
            "HKEYS",
            "HMGET",
            "SET",
            "SPUBLISH",
            "XADD",
            "XINFO GROUPS",
            "XPENDING",
            "XRANGE",
            "ZRANGE",
            "ZSCORE",
        ],
        CALLBACKS => &["HGET"],
        OPERATOR => &[
            "HDEL",
            "HGET",
            "HGETALL",
            "HMGET",
            "HSETNX",
            "XADD",
            "XINFO CONSUMERS",
            "XINFO GROUPS",
            "XINFO STREAM",
            "XPENDING",
            "XRANGE",
            "XREAD",
            "ZCARD",
            "ZCOUNT",
            "XREVRANGE",
            "ZRANGE",
            "ZSCORE",
        ],
        _ => &[
            "EXISTS",
            "HDEL",
            "HEXISTS",
            "HGET",
            "HGETALL",
            "HKEYS",
            "HMGET",
            "HSCAN",
            "HSET",
            "SSUBSCRIBE",
            "XINFO CONSUMERS",
            "XADD",
            "XINFO GROUPS",
            "XINFO STREAM",
            "XLEN",
            "XPENDING",
            "XRANGE",
            "XREVRANGE",
            "ZADD",
            "ZCARD",
            "ZCOUNT",
            "ZRANGE",
            "ZREMRANGEBYRANK",
            "ZREMRANGEBYSCORE",
            "ZSCORE",
        ],
    }
}

/// Returns the commands that a script calls, with the subcommand where there is one.
fn commands_in(script: &Script) -> Vec<String> {
    let calls = script.text().split("call(").skip(1);
    calls
        .filter_map(|rest| {
            let mut words = rest.split('\'');
            let command = words.nth(1)?;
            match command {
                "XGROUP" | "XINFO" => Some(format!("{command} {}", words.nth(1)?)),
                _ => Some(command.to_owned()),
            }
        })
        .collect()
}

/// Returns any key of the namespace, because permissions are granted by pattern.
fn sample_key(namespace: &Namespace) -> String {
    RegistryKeys::new(namespace).topics.as_str().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The page with the ACL lines of the users for operators.
    const PAGE: &str = include_str!("../../docs/operate/topologies.md");
    /// The commands that every connection sends in addition to a role's own: on opening, for its upkeep, and in the checks
    /// at start. `CONFIG GET` is omitted on purpose: it would show passwords, and the check works without it.
    const CONNECTION: &str = "acl|dryrun acl|whoami client|setname info ping";

    /// The commands with which a consumer ends blocked reads immediately, when it stops or another shard needs their handlers. They are
    /// optional: a consumer without them starts as well.
    const UNBLOCKING: &str = "client|id client|unblock";

    #[test]
    fn the_users_on_the_page_may_do_what_they_need_and_no_more() {
        let mut lacking = Vec::new();
        let spelled = |command: &str| command.to_lowercase().replace(' ', "|");
        for user in [
            "producer",
            "manager",
            "consumer",
            "manager+producer",
            "operator",
        ] {
            let mut needed: BTreeSet<String> = CONNECTION.split(' ').map(str::to_owned).collect();
            needed.extend(["EVALSHA", "SCRIPT LOAD", "TIME"].map(spelled));
            if user == "consumer" {
                needed.extend(UNBLOCKING.split(' ').map(str::to_owned));
            }
            for role in user.split('+') {
                needed.extend(of_role(role).iter().map(|command| spelled(command)));
            }
            let needed: Vec<String> = needed.iter().map(|command| format!("+{command}")).collect();
            let line = format!(
                "user lisa-{} on >change-me ~lisa:* &lisa:* {}\n",
                user.replace('+', "-"),
                needed.join(" ")
            );
            if !PAGE.contains(&line) {
                lacking.push(line);
            }
        }
        assert!(lacking.is_empty(), "the page lacks:\n{}", lacking.concat());
    }

    #[test]
    fn a_consumer_with_callbacks_or_a_gateway_needs_the_additional_rights_on_the_page() {
        let commands = |role| -> BTreeSet<String> {
            let commands = of_role(role).into_iter();
            let commands = commands.map(|command| command.to_lowercase().replace(' ', "|"));
            commands.collect()
        };
        for (role, of) in [
            (CALLBACKS, "success_topic or garbage_topic"),
            (GATEWAY, "consumer.gateway or complete_url"),
            (SQS, "consumer.gateway.sqs"),
        ] {
            let more: Vec<_> = commands(role)
                .difference(&commands("consumer"))
                .map(|command| format!("+{command}"))
                .collect();
            let line = format!("{:<27} for a consumer with {of}\n", more.join(" "));
            assert!(PAGE.contains(&line), "the page lacks: {line}");
        }
    }

    #[test]
    fn every_command_of_every_role_has_a_line() {
        let lines: Vec<String> = LINES
            .iter()
            .flat_map(|line| [line[0].to_owned(), line[..line.len().min(2)].join(" ")])
            .collect();
        for role in ["producer", "manager", "consumer", CALLBACKS, GATEWAY, SQS] {
            for command in of_role(role) {
                assert!(lines.contains(&command), "{role} runs {command}");
            }
        }
    }

    #[test]
    fn a_role_needs_what_it_runs_and_no_more() {
        let commands = |roles| -> Vec<String> {
            let permissions = of_roles(roles, &Namespace::default());
            permissions
                .into_iter()
                .map(|permission| permission.command)
                .collect()
        };
        let producer = commands("producer");
        assert!(producer.contains(&"ZADD".to_owned()));
        assert!(!producer.contains(&"XREADGROUP".to_owned()));
        assert!(!commands("consumer").contains(&"ZREMRANGEBYSCORE".to_owned()));
        let both = commands("manager+producer");
        assert!(producer.iter().all(|command| both.contains(command)));
    }
}
