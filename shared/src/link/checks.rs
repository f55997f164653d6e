//! What a role checks about its Redis, each server of a cluster, as a list of findings: all of it at its start and for each
//! new connection, and what an operator may set at any time once a minute.
//!
//! It looks and reports; refusing and logging are the role's. A check that the user is not allowed to make becomes a
//! note, never a failure.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::SignedDuration;
use redis::{Cmd, Value, cmd};

use super::{Link, LinkError, LinkErrorKind, Script, Server};

const OLDEST: (u64, u64) = (7, 0);
const BEST_STREAM_NODE: &str = "20";
const SKEW_LIMIT: SignedDuration = SignedDuration::from_secs(1);

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Good to know.
    Note,
    /// Works, but should be mended.
    Warn,
    /// The role must not start; one that runs is not ready.
    Refuse,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The server may delete messages to make room.
    Eviction,
    /// Another setting that an operator may change at any time.
    Settings,
    /// The clock, whose figures differ each time.
    Clock,
    /// What the server can do and lets us do.
    Server,
}

/// One thing found about the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What it is about.
    pub about: About,
    /// What was found.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

/// What a role needs of its Redis.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Commands that must exist; a subcommand is written `xgroup|create`.
    pub commands: Vec<String>,
    /// Commands with arguments that the user must be allowed to run, keys included.
    pub permissions: Vec<Permission>,
    /// The same for what it can do without most of the time, and what that is needed for.
    pub niceties: Vec<(Permission, &'static str)>,
    /// Whether the append-only file must be on.
    pub append_only: bool,
    /// Whether a server that evicts keys is only warned about.
    pub allow_eviction: bool,
}

/// A command line tried by `ACL DRYRUN`; nothing is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// Command.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
}

/// Runs all checks; each request may take `deadline`.
///
/// # Errors
///
/// The link's error when Redis cannot be asked at all.
pub async fn check(
    link: &Link,
    needs: &Needs,
    deadline: Duration,
) -> Result<Vec<Finding>, LinkError> {
    let mut findings = check_settings(link, needs, deadline).await?;
    for server in link.servers() {
        let asker = Asker { server, deadline };
        add(&mut findings, check_rights(&asker, needs).await?);
        let skew = asker.server.clock().skew().and_then(skew);
        add(&mut findings, skew.into_iter().collect());
    }
    Ok(findings)
}

/// Runs the checks of what an operator may set while the server runs: two requests to each server.
///
/// # Errors
///
/// As [`check`].
pub async fn check_settings(
    link: &Link,
    needs: &Needs,
    deadline: Duration,
) -> Result<Vec<Finding>, LinkError> {
    let mut findings: Vec<Finding> = Vec::new();
    for server in link.servers() {
        let asker = Asker { server, deadline };
        let found = eviction(&asker, needs.allow_eviction).await?;
        add(&mut findings, found.into_iter().collect());
        add(&mut findings, persistence(&asker, needs.append_only).await?);
    }
    for finding in &mut findings {
        if finding.about == About::Server {
            finding.about = About::Settings;
        }
    }
    Ok(findings)
}

/// Finds the servers that may delete messages to make room, with one request to each at a time. One that does not answer,
/// or not for this user, is left out.
pub async fn check_eviction(link: &Link, deadline: Duration) -> Vec<Finding> {
    let servers = link.servers().into_iter().filter(Server::is_up);
    let asked = servers.map(async |server| eviction(&Asker { server, deadline }, true).await);
    let mut findings = Vec::new();
    for found in join_all(asked).await.into_iter().flatten().flatten() {
        if found.about == About::Eviction {
            add(&mut findings, vec![found]);
        }
    }
    findings
}

/// The servers of a cluster are usually set alike.
fn add(findings: &mut Vec<Finding>, found: Vec<Finding>) {
    for found in found {
        if !findings.contains(&found) {
            findings.push(found);
        }
    }
}

/// What the server can do and lets us do: this does not change while it runs, but for rights.
async fn check_rights(asker: &Asker<'_>, needs: &Needs) -> Result<Vec<Finding>, LinkError> {
    let mut findings = version(asker).await?;
    let lacking = lacking(asker, &needs.commands).await?;
    match &lacking {
        Ok(lacking) => findings.extend(lacking.iter().map(|name| {
            finding(
                Level::Refuse,
                format!("the server lacks the command {name}"),
                "use a server that has it",
            )
        })),
        Err(skipped) => findings.push(skipped.clone()),
    }
    findings.extend(lua(asker).await?);
    findings.extend(loader(asker, &needs.permissions).await?);
    findings.extend(stream_nodes(asker).await?);
    // Redis denies nobody what it does not know: one finding is enough.
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
    /// Sends a command; an answer that says "not for you" or "what is that" is a value here.
    async fn ask(&self, cmd: &Cmd) -> Result<Result<Value, LinkError>, LinkError> {
        match self.server.call(cmd, self.deadline).await {
            Err(error) if error.kind == LinkErrorKind::Unavailable => Err(error),
            answered => Ok(answered),
        }
    }

    async fn info(&self, section: &str) -> Result<Result<Info, Finding>, LinkError> {
        let asked = self.ask(cmd("INFO").arg(section)).await?;
        Ok(asked
            .map(|reply| Info(text(reply)))
            .map_err(|error| skipped(&format!("INFO {section}"), &error)))
    }
}

/// One section of INFO.
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

fn skipped(what: &str, error: &LinkError) -> Finding {
    finding(
        Level::Note,
        format!("{what} could not be read ({})", error.detail),
        "check this setting by hand",
    )
}

async fn version(asker: &Asker<'_>) -> Result<Vec<Finding>, LinkError> {
    let info = match asker.info("server").await? {
        Ok(info) => info,
        Err(skipped) => return Ok(vec![skipped]),
    };
    // Valkey says redis_version 7.2.4, which is what it is compatible with, and its own version beside it.
    let version = info.get("redis_version").unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    let pair: (u64, u64) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if pair >= OLDEST {
        return Ok(Vec::new());
    }
    let what = format!("the server is of version {version:?}");
    Ok(vec![finding(
        Level::Refuse,
        what,
        "use Redis 7.0 or newer, or Valkey: older ones lose data inside scripts",
    )])
}

/// Gives those of these commands that the server does not know.
async fn lacking(
    asker: &Asker<'_>,
    names: &[String],
) -> Result<Result<Vec<String>, Finding>, LinkError> {
    if names.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let known = match asker.ask(cmd("COMMAND").arg("INFO").arg(names)).await? {
        Ok(Value::Array(known)) => known,
        Ok(_) => Vec::new(),
        Err(error) => return Ok(Err(skipped("COMMAND INFO", &error))),
    };
    let lacking = names.iter().enumerate().filter(|(place, _)| {
        !matches!(known.get(*place), Some(Value::Array(description)) if !description.is_empty())
    });
    Ok(Ok(lacking.map(|(_, name)| name.clone()).collect()))
}

async fn lua(asker: &Asker<'_>) -> Result<Option<Finding>, LinkError> {
    // By hash, as all scripts are sent: a user may be allowed EVALSHA and SCRIPT LOAD but not EVAL.
    let probe = Script::new("probe", "return 1");
    let none: [&str; 0] = [];
    let problem = match asker
        .server
        .eval(&probe, &none, &none, asker.deadline)
        .await
    {
        Ok(Value::Int(1)) => return Ok(None),
        Ok(other) => format!("a Lua script that returns 1 answered {other:?}"),
        Err(error) if error.kind == LinkErrorKind::Unavailable => return Err(error),
        Err(error) => format!("Lua scripts do not work: {}", error.detail),
    };
    Ok(Some(finding(
        Level::Refuse,
        problem,
        "allow EVALSHA and SCRIPT LOAD to this user, and load the Lua engine",
    )))
}

async fn eviction(asker: &Asker<'_>, allowed: bool) -> Result<Option<Finding>, LinkError> {
    // INFO names the policy also where CONFIG is forbidden.
    let info = match asker.info("memory").await? {
        Ok(info) => info,
        Err(skipped) => return Ok(Some(skipped)),
    };
    let policy = info.get("maxmemory_policy").unwrap_or("unknown");
    if policy == "noeviction" {
        return Ok(None);
    }
    let level = if allowed { Level::Warn } else { Level::Refuse };
    let what = format!("maxmemory-policy is {policy}: Redis may delete messages to make room");
    let advice = "set maxmemory-policy noeviction (or pass --allow-eviction and accept the loss)";
    Ok(Some(Finding {
        about: About::Eviction,
        ..finding(level, what, advice)
    }))
}

async fn persistence(asker: &Asker<'_>, append_only: bool) -> Result<Vec<Finding>, LinkError> {
    let info = match asker.info("persistence").await? {
        Ok(info) => info,
        Err(skipped) => return Ok(vec![skipped]),
    };
    let mut findings = Vec::new();
    if info.get("aof_enabled") == Some("0") {
        let what = "the append-only file is off: a restart of Redis loses what came after its last snapshot";
        let (level, advice) = if append_only {
            (
                Level::Refuse,
                "set appendonly yes: a topic has durability aof",
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
                "look at the disk and the log of the server",
            ));
        }
    }
    Ok(findings)
}

/// Redis replays the append-only file as its default user, and drops every transaction in it, as which scripts are written,
/// that this user may not run. Seen with Redis 7.0 and 8.2; Valkey 9 replays all.
async fn loader(asker: &Asker<'_>, wanted: &[Permission]) -> Result<Option<Finding>, LinkError> {
    let Some(key) = wanted
        .iter()
        .filter_map(|line| line.args.first())
        .find(|arg| arg.contains('{'))
    else {
        return Ok(None);
    };
    // Who may not look cannot be told: its own permissions are checked below.
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
            "give it the rights back and leave it off (user default off ~* &* +@all): a restart would lose \
             what scripts wrote, since Redis loads its append-only file as this user",
        ))),
        _ => Ok(None),
    }
}

async fn stream_nodes(asker: &Asker<'_>) -> Result<Option<Finding>, LinkError> {
    const NAME: &str = "stream-node-max-entries";
    // Managed servers forbid CONFIG; the setting only costs speed, so nothing is said then.
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

/// Tries each of these; with the use of one that can be done without.
async fn permissions(
    asker: &Asker<'_>,
    wanted: Vec<(&Permission, Option<&str>)>,
) -> Result<Vec<Finding>, LinkError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let user = match asker.ask(cmd("ACL").arg("WHOAMI")).await? {
        Ok(user) => text(user),
        Err(error) => return Ok(vec![skipped("the name of the user", &error)]),
    };
    let mut findings = Vec::new();
    for (Permission { command, args }, use_of) in wanted {
        let answer = match asker
            .ask(cmd("ACL").arg("DRYRUN").arg(&user).arg(command).arg(args))
            .await?
        {
            Ok(answer) => text(answer),
            Err(error)
                if error.kind == LinkErrorKind::Denied
                    || error.kind == LinkErrorKind::NotSupported =>
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
                None => (Level::Refuse, "a script would stop half way"),
            };
            findings.push(finding(
                level,
                what,
                format!("add it to the ACL of the user: {why}"),
            ));
        }
    }
    Ok(findings)
}

fn skew(skew: SignedDuration) -> Option<Finding> {
    (skew.abs() > SKEW_LIMIT).then(|| {
        let what = format!("this host's clock differs from redis's by {skew:#}");
        let advice = "synchronise both by NTP; due times follow redis's clock";
        Finding {
            about: About::Clock,
            ..finding(Level::Warn, what, advice)
        }
    })
}
