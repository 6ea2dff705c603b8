//! The effect of a fenced write: the caller's commands, or the caller's own script.

use redis::{Arg, Cmd, ToRedisArgs};

/// Most words of one command, including its name: Lua's `unpack` supports no more than about 8000 values in a
/// call.
pub const WORDS_MAX: usize = 4000;

/// A command of a fenced write: its name, then its keys and arguments in the order that Redis expects.
///
/// ```
/// # use lockkeeper_fence::redis::RedisCommand;
/// let pay = RedisCommand::new("HINCRBY").key("account:7").arg("balance").arg(-250);
/// let log = RedisCommand::new("RPUSH").key("ledger").arg(&["rent", "250"]);
/// # let _ = (pay, log);
/// ```
///
/// Keys are distinguished from arguments because a script must declare the keys that it accesses: a cluster
/// routes the call by its keys, and Redis checks the user's ACL against them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisCommand {
    words: Vec<Vec<u8>>,
    /// Indices of the words that are keys.
    keys: Vec<usize>,
}

impl RedisCommand {
    /// A command without keys and arguments, e.g. `SET` or `HINCRBY`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { words: vec![name.as_bytes().to_vec()], keys: Vec::new() }
    }

    /// Adds a key.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.keys.push(self.words.len());
        self.words.push(key.as_ref().to_vec());
        self
    }

    /// Adds an argument; a slice adds one argument per element.
    #[must_use]
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.words.extend(arg.to_redis_args());
        self
    }

    pub(super) fn name(&self) -> String {
        String::from_utf8_lossy(&self.words[0]).into_owned()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(|at| self.words[*at].as_slice())
    }

    pub(super) fn words(&self) -> &[Vec<u8>] {
        &self.words
    }

    /// Why the command is not allowed in a fenced write; `None` if no reason is visible before it is sent.
    pub(super) fn fault(&self) -> Option<&'static str> {
        // These commands delete or replace the marks too, and without marks stale tokens pass.
        const FORGET: [&str; 3] = ["FLUSHALL", "FLUSHDB", "SWAPDB"];
        let name = self.name();
        if name.is_empty() {
            Some("it has no name; give one, such as SET")
        } else if self.words.len() > WORDS_MAX {
            Some("it has more than 4000 words; split it into several commands of the same write")
        } else if FORGET.iter().any(|word| word.eq_ignore_ascii_case(&name)) {
            Some("it takes the marks away too; delete the keys by name")
        } else {
            None
        }
    }
}

/// The caller's own Lua, run after the check in the same step. Create it once and reuse it.
///
/// The text is the body of a function, with its keys and arguments in `KEYS` and `ARGV` as in any script. An
/// error that it raises ends the script; its effects before the error remain.
#[derive(Clone, Debug)]
pub struct FenceScript(Script);

impl FenceScript {
    /// A script from its text. Syntax errors are reported only when it runs.
    #[must_use]
    pub fn new(lua: &str) -> Self {
        Self(Script::new(&[
            CHECK,
            include_str!("scripts/before.lua"),
            lua,
            include_str!("scripts/after.lua"),
        ]))
    }

    pub(super) fn script(&self) -> &Script {
        &self.0
    }
}

pub(super) const CHECK: &str = include_str!("scripts/check.lua");

/// A script and its digest. It is called by its digest (EVALSHA). If the server doesn't know the digest, for
/// example after a restart, the full text is sent (EVAL), and the server caches the script again.
#[derive(Clone, Debug)]
pub(super) struct Script {
    text: String,
    digest: String,
}

impl Script {
    pub(super) fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Self { text, digest }
    }

    /// The command that runs the script, without its arguments.
    pub(super) fn call(&self, keys: &[&[u8]]) -> Cmd {
        let mut call = Cmd::with_capacity(keys.len() + 16, 512);
        call.arg("EVALSHA").arg(&self.digest).arg(keys.len());
        for key in keys {
            call.arg(key);
        }
        call
    }

    /// The same call with the script's full text instead of its digest.
    pub(super) fn in_full(&self, call: &Cmd) -> Cmd {
        let mut full = Cmd::new();
        full.arg("EVAL").arg(&self.text);
        for arg in call.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                full.arg(arg);
            }
        }
        full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lists_its_keys_and_rejects_unsafe_commands() {
        let copy = RedisCommand::new("COPY").key("from").key("to").arg("REPLACE");
        assert_eq!(copy.keys().collect::<Vec<_>>(), [b"from".as_slice(), b"to"]);
        assert_eq!(copy.words().len(), 4);
        assert_eq!(copy.fault(), None);
        let push = |values: usize| RedisCommand::new("RPUSH").key("list").arg(vec![7; values]);
        assert_eq!(push(WORDS_MAX - 2).fault(), None);
        for bad in [push(WORDS_MAX - 1), RedisCommand::new(""), RedisCommand::new("flushAll")] {
            assert!(bad.fault().is_some(), "{}", bad.name());
        }
    }
}
