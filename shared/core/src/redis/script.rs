//! A Lua script with its name and hash.
//!
//! Scripts are sent by their SHA-1 hash; the connection loads those that the server does not know.

use redis::{Arg, Cmd, ToRedisArgs};

/// A Lua script with the SHA-1 hash by which Redis knows it.
///
/// Build each one once (`static MOVE: LazyLock<Script> = ..`): [`Script::new`] hashes the text.
#[derive(Debug)]
pub struct Script {
    name: &'static str,
    text: &'static str,
    sha: String,
}

impl Script {
    /// Hashes a script. Errors and metrics use its name.
    pub fn new(name: &'static str, text: &'static str) -> Self {
        let sha = redis::Script::new(text).get_hash().to_owned();
        Self { name, text, sha }
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the Lua text.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Returns the SHA-1 hash in hexadecimal.
    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// Starts a call with these keys, without arguments.
    pub fn call<K: AsRef<[u8]>>(&self, keys: &[K]) -> ScriptCall<'_> {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.sha).arg(keys.len());
        for key in keys {
            cmd.arg(key.as_ref());
        }
        ScriptCall { script: self, cmd }
    }

    pub(super) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(self.text);
        cmd
    }
}

/// One call of a script: its keys and its arguments.
pub struct ScriptCall<'s> {
    pub(super) script: &'s Script,
    pub(super) cmd: Cmd,
}

impl ScriptCall<'_> {
    /// Appends an argument, or each item of a list.
    #[must_use]
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    /// Returns the command, to which arguments may be appended.
    pub(crate) fn cmd(&mut self) -> &mut Cmd {
        &mut self.cmd
    }

    /// Returns the first key.
    pub(super) fn key(&self) -> Option<&[u8]> {
        // It follows the name of the command, the hash, and the number of keys.
        let mut args = self.cmd.args_iter().skip(2);
        match (args.next(), args.next()) {
            (Some(Arg::Simple(b"0")), _) => None,
            (_, Some(Arg::Simple(key))) => Some(key),
            _ => None,
        }
    }
}
