//! The server's slow log, with the names of the scripts instead of their hashes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Value, cmd, from_redis_value};

/// One call of a script of Lisa's.
pub(crate) struct Call {
    /// Its name.
    pub(crate) script: String,
    /// The time that the server was busy with it, in µs.
    pub(crate) us: u64,
}

/// Reads all calls of Lisa's scripts in the log.
///
/// # Panics
/// Panics if the server does not answer as it should.
pub(crate) async fn read(connection: &mut MultiplexedConnection) -> Vec<Call> {
    let mut ask = cmd("SLOWLOG");
    let entries: Vec<Vec<Value>> = ask
        .arg("GET")
        .arg(-1)
        .query_async(connection)
        .await
        .expect("SLOWLOG GET");
    entries.into_iter().filter_map(call).collect()
}

/// An entry is its number, its time, its duration in µs, its command with arguments, and more.
fn call(entry: Vec<Value>) -> Option<Call> {
    let [_, _, us, command, ..] = <[Value; 6]>::try_from(entry).ok()?;
    let us = from_redis_value(us).ok()?;
    let Value::Array(command) = command else {
        return None;
    };
    let mut words = command.into_iter().map(from_redis_value::<String>);
    let verb = words.next()?.ok()?;
    if !verb.eq_ignore_ascii_case("EVALSHA") {
        return None;
    }
    let hash = words.next()?.ok()?;
    let script = name(&hash)?.to_owned();
    Some(Call { script, us })
}

/// The name of the script with this hash, if it is one of Lisa's.
pub(crate) fn name(hash: &str) -> Option<&'static str> {
    NAMES.get(hash).map(String::as_str)
}

/// The parts that general scripts share after `copies` and `transitions`.
const MORE: [&[&str]; 5] = [
    &[],
    &["streams"],
    &["bundles"],
    &["streams", "states"],
    &["streams", "bundles"],
];

/// The names of Lisa's scripts by their hashes, with all parts that they may share: the engine's `assemble` joins them so.
static NAMES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    let shared: BTreeMap<String, String> = lisa_tests::scripts::shared().into_iter().collect();
    let [prelude, copies, transitions] =
        ["prelude", "copies", "transitions"].map(|name| &shared[name]);
    let mut names = BTreeMap::new();
    for (name, text) in lisa_tests::scripts::all() {
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let plain = format!("{first}\n{prelude}{rest}");
        let general = MORE.map(|more| {
            let more: String = more.iter().map(|name| shared[*name].as_str()).collect();
            format!(
                "{first}\n{prelude}{copies}return (function()\n{transitions}{more}{rest}\nend)()\n"
            )
        });
        for whole in general.iter().chain([&plain]) {
            let script = redis::Script::new(whole);
            names.insert(script.get_hash().to_owned(), name.clone());
        }
    }
    names
});
