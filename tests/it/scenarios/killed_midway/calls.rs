//! The calls of a process to Redis, by name, and the call at which it is held.

use lisa_tests::{Fate, Request};
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex};

/// The side of Redis on which a call is held when its process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Redis never gets it.
    Before,
    /// Redis has done it, and the reply is lost.
    Behind,
}

/// The scripts: the name of each, and its text without its first line, after which Lisa inserts the shared parts.
static SCRIPTS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let body = |(name, text): (String, String)| {
        let (_, rest) = text.split_once('\n').expect("a first line");
        (name, rest.to_owned())
    };
    lisa_tests::scripts::all().into_iter().map(body).collect()
});

/// The names of all scripts.
pub(super) fn scripts() -> impl Iterator<Item = &'static str> {
    SCRIPTS.iter().map(|(name, _)| name.as_str())
}

/// The calls of one process.
#[derive(Default)]
pub(super) struct Calls(Mutex<State>);

#[derive(Default)]
struct State {
    /// Hashes of scripts.
    names: HashMap<String, String>,
    wanted: Option<(&'static str, Side)>,
    /// The number of times that each was called.
    seen: BTreeMap<String, usize>,
}

impl Calls {
    /// Holds the next call of this name: of a script, or of a command in capitals.
    pub(super) fn hold(&self, call: &'static str, side: Side) {
        self.0.lock().unwrap().wanted = Some((call, side));
    }

    /// Returns the calls and their counts.
    pub(super) fn seen(&self) -> String {
        format!("{:?}", self.0.lock().unwrap().seen)
    }

    /// Decides about a request of the process. The answer for an unknown script is that Redis does not have it, so that
    /// the process loads it and shows its text.
    pub(super) fn judge(&self, request: &Request) -> Fate {
        let mut state = self.0.lock().unwrap();
        let name = match request.command().as_str() {
            "EVALSHA" => match state.names.get(&request.word(1)) {
                Some(name) => name.clone(),
                None => return Fate::Answer("-NOSCRIPT No matching script.\r\n".to_owned()),
            },
            "SCRIPT" => {
                let text = request.word(2);
                let hash = redis::Script::new(&text).get_hash().to_owned();
                let known = SCRIPTS.iter().find(|(_, rest)| text.contains(rest));
                // A check when a process starts is none of the operations.
                let name = known.map_or("SCRIPT", |(name, _)| name);
                state.names.insert(hash, name.to_owned());
                return Fate::Pass;
            }
            command => command.to_owned(),
        };
        let fate = match state.wanted {
            Some((wanted, Side::Before)) if wanted == name => Fate::HoldRequest,
            Some((wanted, Side::Behind)) if wanted == name => Fate::HoldReply,
            _ => Fate::Pass,
        };
        *state.seen.entry(name).or_default() += 1;
        fate
    }
}
