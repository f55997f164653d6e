//! The server's slow log, with the names of the scripts instead of their hashes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Value, cmd, from_redis_value};

/// One call of a script of Lisa's, or a command.
pub(crate) struct Call {
    /// The name of the script or command.
    pub(crate) script: String,
    /// The time that the server was busy with it, in µs.
    pub(crate) us: u64,
}

/// Reads all calls of Lisa's scripts in the log.
///
/// # Panics
/// Panics if the server does not answer as it should.
pub(crate) async fn read(connection: &mut MultiplexedConnection) -> Vec<Call> {
    let scripts = entries(connection).await.into_iter();
    let script = |Entry { us, words, .. }: Entry| {
        let script = script(&words)?.to_owned();
        Some(Call { script, us })
    };
    scripts.filter_map(script).collect()
}

/// Reads all calls of the clients with this name in the log, scripts and commands.
///
/// # Panics
/// Panics if the server does not answer as it should.
pub(crate) async fn calls_of(connection: &mut MultiplexedConnection, client: &str) -> Vec<Call> {
    let entries = entries(connection).await.into_iter();
    let own = entries.filter(|entry| entry.client == client);
    let call = |Entry { us, words, .. }: Entry| Call {
        script: match script(&words) {
            Some(script) => script.to_owned(),
            None => words
                .first()
                .map_or(String::new(), |word| word.to_uppercase()),
        },
        us,
    };
    own.map(call).collect()
}

/// An entry of the log: the time that the server was busy with it in µs, the command with its arguments, and the name of
/// the client.
struct Entry {
    us: u64,
    words: Vec<String>,
    client: String,
}

async fn entries(connection: &mut MultiplexedConnection) -> Vec<Entry> {
    let mut ask = cmd("SLOWLOG");
    let entries: Vec<Vec<Value>> = ask
        .arg("GET")
        .arg(-1)
        .query_async(connection)
        .await
        .expect("SLOWLOG GET");
    let entry = |entry: Vec<Value>| {
        let [_, _, us, words, _, client] = <[Value; 6]>::try_from(entry).ok()?;
        let words: Vec<Vec<u8>> = from_redis_value(words).ok()?;
        let text = |word: Vec<u8>| String::from_utf8_lossy(&word).into_owned();
        Some(Entry {
            us: from_redis_value(us).ok()?,
            words: words.into_iter().map(text).collect(),
            client: from_redis_value(client).ok()?,
        })
    };
    entries.into_iter().filter_map(entry).collect()
}

/// Returns the name of the script of Lisa's that a command calls.
fn script(words: &[String]) -> Option<&'static str> {
    let [verb, hash, ..] = words else {
        return None;
    };
    verb.eq_ignore_ascii_case("EVALSHA").then(|| name(hash))?
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
