//! Checks of a role's Redis, on each server of a cluster, as a list of findings. A role runs all checks at its start
//! and for each new connection. Once a minute it repeats those of settings that an operator may change at any time.
//!
//! It only reports; the role refuses and logs. A check that the user is not allowed to make becomes a note, never a
//! failure.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::SignedDuration;
use redis::{Cmd, Value, cmd};

use super::{Connection, ConnectionError, ConnectionErrorKind, Script, Server};

const OLDEST: (u64, u64) = (7, 0);
const BEST_STREAM_NODE: &str = "20";
/// The share of `maxclients` above which the connections of a server are a finding, in percent.
const MOST_CONNECTIONS: u64 = 80;
const SKEW_LIMIT: SignedDuration = SignedDuration::from_secs(1);

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For information.
    Note,
    /// Works, but should be corrected.
    Warn,
    /// The role must not start; a running role is not ready.
    Refuse,
}

/// The subject of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The server may delete messages to free memory.
    Eviction,
    /// Another setting that an operator may change at any time.
    Settings,
    /// The clock; its numbers differ with each check.
    Clock,
    /// The abilities of the server and the permissions of the user.
    Server,
}

/// One finding about a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub level: Level,
    /// The subject.
    pub about: About,
    /// The problem found.
    pub what: String,
    /// The recommended action.
    pub advice: String,
}

/// The requirements of a role for its Redis.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Commands that must exist; a subcommand is written `xgroup|create`.
    pub commands: Vec<String>,
    /// Commands with arguments, including keys, that the user must be allowed to run.
    pub permissions: Vec<Permission>,
    /// Commands that the role can usually do without, each with the purpose it serves.
    pub niceties: Vec<(Permission, &'static str)>,
    /// True if the append-only file must be on.
    pub append_only: bool,
    /// True if a server that evicts keys causes only a warning.
    pub allow_eviction: bool,
}

/// A command line tested with `ACL DRYRUN`; nothing is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The command.
    pub command: String,
    /// The arguments of the command.
    pub args: Vec<String>,
}

/// Runs all checks; each request may take up to `deadline`.
///
/// # Errors
///
/// The connection's error if Redis is unavailable.
pub async fn check(
    connection: &Connection,
    needs: &Needs,
    deadline: Duration,
) -> Result<Vec<Finding>, ConnectionError> {
    let mut findings = check_settings(connection, needs, deadline).await?;
    for server in connection.servers() {
        let asker = Asker { server, deadline };
        add(&mut findings, check_rights(&asker, needs).await?);
        let skew = asker.server.clock().skew().and_then(skew);
        add(&mut findings, skew.into_iter().collect());
    }
    Ok(findings)
}

/// Checks the settings that an operator may change while the server runs, and how near its connections are to their limit, with
/// three requests to each server.
///
/// # Errors
///
/// As [`check`].
pub async fn check_settings(
    connection: &Connection,
    needs: &Needs,
    deadline: Duration,
) -> Result<Vec<Finding>, ConnectionError> {
    let mut findings: Vec<Finding> = Vec::new();
    for server in connection.servers() {
        let asker = Asker { server, deadline };
        let found = eviction(&asker, needs.allow_eviction).await?;
        add(&mut findings, found.into_iter().collect());
        add(&mut findings, persistence(&asker, needs.append_only).await?);
        let found = connections(&asker).await?;
        add(&mut findings, found.into_iter().collect());
    }
    for finding in &mut findings {
        if finding.about == About::Server {
            finding.about = About::Settings;
        }
    }
    Ok(findings)
}

/// Finds the servers that may delete messages to free memory, with one request to each, all at the same time. Omits a
/// server that does not answer, or does not answer this user.
pub async fn check_eviction(connection: &Connection, deadline: Duration) -> Vec<Finding> {
    let servers = connection.servers().into_iter().filter(Server::is_up);
    let asked = servers.map(async |server| eviction(&Asker { server, deadline }, true).await);
    let mut findings = Vec::new();
    for found in join_all(asked).await.into_iter().flatten().flatten() {
        if found.about == About::Eviction {
            add(&mut findings, vec![found]);
        }
    }
    findings
}

/// The memory of a server, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The memory that its data takes.
    pub used: u64,
    /// The limit `maxmemory`; 0 for none.
    pub limit: u64,
}

/// Reads the memory of the fullest server, with one request to each. Returns `None` if this user may not read it.
///
/// # Errors
///
/// As [`check`].
pub async fn memory(
    connection: &Connection,
    deadline: Duration,
) -> Result<Option<Memory>, ConnectionError> {
    let mut fullest: Option<Memory> = None;
    for server in connection.servers() {
        let asker = Asker { server, deadline };
        let Ok(info) = asker.info("memory").await? else {
            continue;
        };
        let number = |name| info.get(name).and_then(|number| number.parse().ok());
        let (Some(used), Some(limit)) = (number("used_memory"), number("maxmemory")) else {
            continue;
        };
        let memory = Memory { used, limit };
        if fullest.is_none_or(|before| before.is_less_full_than(memory)) {
            fullest = Some(memory);
        }
    }
    Ok(fullest)
}

impl Memory {
    /// Compares the shares of the limits that are used; a server without a limit uses the smallest share.
    fn is_less_full_than(self, other: Self) -> bool {
        match (self.limit, other.limit) {
            (0, 0) => self.used < other.used,
            (0, _) | (_, 0) => self.limit == 0,
            (mine, others) => {
                u128::from(self.used) * u128::from(others)
                    < u128::from(other.used) * u128::from(mine)
            }
        }
    }
}

/// Adds each finding once: the servers of a cluster usually have the same settings.
fn add(findings: &mut Vec<Finding>, found: Vec<Finding>) {
    for found in found {
        if !findings.contains(&found) {
            findings.push(found);
        }
    }
}

/// Checks the abilities of the server and the permissions of the user. Only the permissions can change while it runs.
async fn check_rights(asker: &Asker<'_>, needs: &Needs) -> Result<Vec<Finding>, ConnectionError> {
    let mut findings = version(asker).await?;
    let lacking = lacking(asker, &needs.commands).await?;
    match &lacking {
        Ok(lacking) => findings.extend(lacking.iter().map(|name| {
            finding(
                Level::Refuse,
                format!("the server lacks the command {name}"),
                "use a server that supports it",
            )
        })),
        Err(skipped) => findings.push(skipped.clone()),
    }
    findings.extend(lua(asker).await?);
    findings.extend(loader(asker, &needs.permissions).await?);
    findings.extend(stream_nodes(asker).await?);
    // Redis denies no command that it does not know: one finding about it is enough.
    let lacking = lacking.unwrap_or_default();
    let is_known = |permission: &Permission| {
        !lacking
            .iter()
            .any(|name| name.eq_ignore_ascii_case(&permission.command))
    };
    let wanted = needs
        .permissions
        .iter()
        .map(|permission| (permission, None))
        .chain(
            needs
                .niceties
                .iter()
                .map(|(permission, use_of)| (permission, Some(*use_of))),
        )
        .filter(|(permission, _)| is_known(permission));
    findings.extend(permissions(asker, wanted.collect()).await?);
    Ok(findings)
}

struct Asker<'a> {
    server: Server<'a>,
    deadline: Duration,
}

impl Asker<'_> {
    /// Sends a command. Replies such as "not permitted" or "unknown command" are values here; only an unavailable
    /// server is an error.
    async fn ask(&self, cmd: &Cmd) -> Result<Result<Value, ConnectionError>, ConnectionError> {
        match self.server.call(cmd, self.deadline).await {
            Err(error) if error.kind == ConnectionErrorKind::Unavailable => Err(error),
            answered => Ok(answered),
        }
    }

    async fn info(&self, section: &str) -> Result<Result<Info, Finding>, ConnectionError> {
        let asked = self.ask(cmd("INFO").arg(section)).await?;
        Ok(asked
            .map(|reply| Info(text(reply)))
            .map_err(|error| skipped(&format!("INFO {section}"), &error)))
    }
}

/// One section of `INFO`.
struct Info(String);

impl Info {
    fn get(&self, name: &str) -> Option<&str> {
        self.0
            .lines()
            .find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
    }
}

fn text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::SimpleString(text) => text,
        Value::Okay => "OK".to_owned(),
        _ => String::new(),
    }
}

fn finding(level: Level, what: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding {
        level,
        about: About::Server,
        what: what.into(),
        advice: advice.into(),
    }
}

fn skipped(what: &str, error: &ConnectionError) -> Finding {
    finding(
        Level::Note,
        format!("cannot read {what}: {}", error.detail),
        "check this setting manually",
    )
}

async fn version(asker: &Asker<'_>) -> Result<Vec<Finding>, ConnectionError> {
    let info = match asker.info("server").await? {
        Ok(info) => info,
        Err(skipped) => return Ok(vec![skipped]),
    };
    // Valkey reports 7.2.4 as redis_version, the version it is compatible with, and its own version separately.
    let version = info.get("redis_version").unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    let pair: (u64, u64) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if pair >= OLDEST {
        return Ok(Vec::new());
    }
    let what = format!("unsupported server version {version:?}");
    Ok(vec![finding(
        Level::Refuse,
        what,
        "use Redis 7.0 or newer, or Valkey: older versions lose data inside scripts",
    )])
}

/// Returns those of the commands that the server does not know.
async fn lacking(
    asker: &Asker<'_>,
    names: &[String],
) -> Result<Result<Vec<String>, Finding>, ConnectionError> {
    if names.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let known = match asker.ask(cmd("COMMAND").arg("INFO").arg(names)).await? {
        Ok(Value::Array(known)) => known,
        Ok(_) => Vec::new(),
        Err(error) => return Ok(Err(skipped("COMMAND INFO", &error))),
    };
    let lacking = names.iter().enumerate().filter(|(index, _)| {
        !matches!(known.get(*index), Some(Value::Array(description)) if !description.is_empty())
    });
    Ok(Ok(lacking.map(|(_, name)| name.clone()).collect()))
}

async fn lua(asker: &Asker<'_>) -> Result<Option<Finding>, ConnectionError> {
    // By hash, as all scripts are sent: a user may have permission for EVALSHA and SCRIPT LOAD but not for EVAL.
    let probe = Script::new("probe", "return 1");
    let none: [&str; 0] = [];
    let problem = match asker.server.eval(&probe.call(&none), asker.deadline).await {
        Ok(Value::Int(1)) => return Ok(None),
        Ok(other) => format!("a Lua script that returns 1 returned {other:?}"),
        Err(error) if error.kind == ConnectionErrorKind::Unavailable => return Err(error),
        Err(error) => format!("cannot run Lua scripts: {}", error.detail),
    };
    Ok(Some(finding(
        Level::Refuse,
        problem,
        "allow this user to run EVALSHA and SCRIPT LOAD, and load the Lua engine",
    )))
}

async fn eviction(asker: &Asker<'_>, allowed: bool) -> Result<Option<Finding>, ConnectionError> {
    // INFO reports the policy even where CONFIG is forbidden.
    let info = match asker.info("memory").await? {
        Ok(info) => info,
        Err(skipped) => return Ok(Some(skipped)),
    };
    let policy = info.get("maxmemory_policy").unwrap_or("unknown");
    if policy == "noeviction" {
        return Ok(None);
    }
    let level = if allowed { Level::Warn } else { Level::Refuse };
    let what = format!("maxmemory-policy is {policy}: Redis may delete messages to free memory");
    let advice = "set maxmemory-policy noeviction (or pass --allow-eviction and accept the loss)";
    Ok(Some(Finding {
        about: About::Eviction,
        ..finding(level, what, advice)
    }))
}

/// Checks whether the server will soon refuse connections, also those of operators.
async fn connections(asker: &Asker<'_>) -> Result<Option<Finding>, ConnectionError> {
    // If the user may not run INFO, another check reports it.
    let Ok(info) = asker.info("clients").await? else {
        return Ok(None);
    };
    let number = |name| info.get(name).and_then(|number| number.parse::<u64>().ok());
    let (Some(open), Some(limit)) = (number("connected_clients"), number("maxclients")) else {
        return Ok(None);
    };
    // Without the number of connections, so that an equal finding is logged only once.
    let what = format!("more than {MOST_CONNECTIONS} % of maxclients ({limit}) are in use");
    let advice = "raise maxclients: a consumer needs a connection for each subscription and shard";
    let is_near = open.saturating_mul(100) > limit.saturating_mul(MOST_CONNECTIONS);
    Ok(is_near.then(|| finding(Level::Warn, what, advice)))
}

async fn persistence(
    asker: &Asker<'_>,
    append_only: bool,
) -> Result<Vec<Finding>, ConnectionError> {
    let info = match asker.info("persistence").await? {
        Ok(info) => info,
        Err(skipped) => return Ok(vec![skipped]),
    };
    let mut findings = Vec::new();
    if info.get("aof_enabled") == Some("0") {
        let what = "the append-only file is off: a restart of Redis loses all writes since its last snapshot";
        let (level, advice) = if append_only {
            (
                Level::Refuse,
                "set appendonly yes: a topic with durability aof requires it",
            )
        } else {
            (Level::Warn, "set appendonly yes")
        };
        findings.push(finding(level, what, advice));
    }
    for (name, what) in [
        (
            "aof_last_write_status",
            "the last write to the append-only file failed",
        ),
        (
            "aof_last_bgrewrite_status",
            "the last rewrite of the append-only file failed",
        ),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
    ] {
        if info.get(name).is_some_and(|status| status != "ok") {
            findings.push(finding(
                Level::Warn,
                what,
                "check the disk and the log of the server",
            ));
        }
    }
    Ok(findings)
}

/// Checks the default user, as which Redis replays the append-only file. Redis drops every transaction in it that
/// this user may not run, and scripts are written as transactions. Seen with Redis 7.0 and 8.2; Valkey 9 replays
/// everything.
async fn loader(
    asker: &Asker<'_>,
    wanted: &[Permission],
) -> Result<Option<Finding>, ConnectionError> {
    let Some(key) = wanted
        .iter()
        .filter_map(|line| line.args.first())
        .find(|arg| arg.contains('{'))
    else {
        return Ok(None);
    };
    // A user who may not read INFO gets no finding here; its own permissions are checked below.
    let (Ok(server), Ok(files)) = (
        asker.info("server").await?,
        asker.info("persistence").await?,
    ) else {
        return Ok(None);
    };
    if server.get("server_name") == Some("valkey") || files.get("aof_enabled") != Some("1") {
        return Ok(None);
    }
    let mut dry = cmd("ACL");
    dry.arg("DRYRUN")
        .arg("default")
        .arg("HSET")
        .arg(key)
        .arg("f")
        .arg("v");
    match asker.ask(&dry).await? {
        Ok(answer) if text(answer.clone()) != "OK" => Ok(Some(finding(
            Level::Refuse,
            format!("the default user may not write {key}: {}", text(answer)),
            "restore its permissions and keep it off (user default off ~* &* +@all): Redis loads its append-only \
             file as this user, so a restart would lose what scripts wrote",
        ))),
        _ => Ok(None),
    }
}

async fn stream_nodes(asker: &Asker<'_>) -> Result<Option<Finding>, ConnectionError> {
    const NAME: &str = "stream-node-max-entries";
    // Managed servers forbid CONFIG. The setting only costs speed, so there is no finding then.
    let Ok(Value::Array(pair)) = asker.ask(cmd("CONFIG").arg("GET").arg(NAME)).await? else {
        return Ok(None);
    };
    let value = pair.into_iter().nth(1).map(text).unwrap_or_default();
    let odd = !value.is_empty() && value != BEST_STREAM_NODE;
    Ok(odd.then(|| {
        let what = format!("{NAME} is {value}");
        finding(
            Level::Note,
            what,
            format!(
                "set it to {BEST_STREAM_NODE}: the whole pipeline runs about 1.5 times as fast"
            ),
        )
    }))
}

/// Tests each permission; an optional one comes with its purpose.
async fn permissions(
    asker: &Asker<'_>,
    wanted: Vec<(&Permission, Option<&str>)>,
) -> Result<Vec<Finding>, ConnectionError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let user = match asker.ask(cmd("ACL").arg("WHOAMI")).await? {
        Ok(user) => text(user),
        Err(error) => return Ok(vec![skipped("the name of the user (ACL WHOAMI)", &error)]),
    };
    let mut findings = Vec::new();
    for (Permission { command, args }, use_of) in wanted {
        let answer = match asker
            .ask(cmd("ACL").arg("DRYRUN").arg(&user).arg(command).arg(args))
            .await?
        {
            Ok(answer) => text(answer),
            Err(error)
                if error.kind == ConnectionErrorKind::Denied
                    || error.kind == ConnectionErrorKind::NotSupported =>
            {
                findings.push(skipped("the permissions (ACL DRYRUN)", &error));
                return Ok(findings);
            }
            Err(error) => error.detail,
        };
        if answer != "OK" {
            let what = format!(
                "user {user:?} may not run {}: {answer}",
                [std::slice::from_ref(command), args].concat().join(" ")
            );
            let (level, why) = match use_of {
                Some(use_of) => (Level::Warn, use_of),
                None => (Level::Refuse, "a script would stop halfway"),
            };
            findings.push(finding(
                level,
                what,
                format!("add it to the user's ACL: {why}"),
            ));
        }
    }
    Ok(findings)
}

fn skew(skew: SignedDuration) -> Option<Finding> {
    (skew.abs() > SKEW_LIMIT).then(|| {
        let what = format!("this host's clock differs from Redis's by {skew:#}");
        let advice = "synchronize both with NTP; due times follow Redis's clock";
        Finding {
            about: About::Clock,
            ..finding(Level::Warn, what, advice)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_server_uses_the_largest_share_of_its_limit() {
        let memory = |used, limit| Memory { used, limit };
        for (less, more) in [
            (memory(1, 0), memory(2, 0)),
            (memory(9, 0), memory(1, 100)),
            (memory(50, 100), memory(6, 10)),
        ] {
            assert!(less.is_less_full_than(more), "{less:?} {more:?}");
            assert!(!more.is_less_full_than(less), "{more:?} {less:?}");
        }
    }
}
