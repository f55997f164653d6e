//! A Lua script with its name and hash.
//!
//! Scripts are sent by their SHA-1 hash; the connection loads those that the server does not know.

use redis::Cmd;

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

    /// Builds the call by hash. Size and count are known, so the buffer is allocated once.
    pub(super) fn evalsha<K: AsRef<[u8]>, A: AsRef<[u8]>>(&self, keys: &[K], args: &[A]) -> Cmd {
        let bytes = keys.iter().map(|key| key.as_ref().len()).sum::<usize>()
            + args.iter().map(|arg| arg.as_ref().len()).sum::<usize>();
        let mut cmd = Cmd::with_capacity(3 + keys.len() + args.len(), bytes + self.sha.len() + 16);
        cmd.arg("EVALSHA").arg(&self.sha).arg(keys.len());
        for key in keys {
            cmd.arg(key.as_ref());
        }
        for arg in args {
            cmd.arg(arg.as_ref());
        }
        cmd
    }

    pub(super) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(self.text);
        cmd
    }
}
