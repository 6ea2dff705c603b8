//! The scripts: whatever must happen in one step. Each runs by its digest; a server that doesn't know it, after a restart
//! for example, is sent its text, which makes it known again.

use std::sync::LazyLock;

use redis::{Arg, Cmd};

/// A script and its digest.
pub(super) struct Script {
    text: String,
    digest: redis::Script,
}

/// All of them.
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) permit: Script,
    pub(super) renew: Script,
    pub(super) finish: Script,
    pub(super) break_hold: Script,
    pub(super) inspect: Script,
}

const TIME: &str = include_str!("scripts/time.lua");
const VALUE: &str = include_str!("scripts/value.lua");
const FREE: &str = include_str!("scripts/free.lua");
const RELEASE: &str = include_str!("scripts/release.lua");
const WAY: &str = include_str!("scripts/way.lua");
const QUEUE: &str = include_str!("scripts/queue.lua");
const WAIT: &str = include_str!("scripts/wait.lua");
const PERMITS: &str = include_str!("scripts/permits.lua");

pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    acquire: Script::new(&[TIME, VALUE, FREE, WAY, QUEUE, WAIT, include_str!("scripts/acquire.lua")]),
    permit: Script::new(&[TIME, VALUE, WAY, QUEUE, WAIT, PERMITS, include_str!("scripts/permit.lua")]),
    renew: Script::new(&[TIME, QUEUE, PERMITS, include_str!("scripts/renew.lua")]),
    finish: Script::new(&[RELEASE, TIME, QUEUE, PERMITS, include_str!("scripts/finish.lua")]),
    break_hold: Script::new(&[TIME, QUEUE, PERMITS, include_str!("scripts/break.lua")]),
    inspect: Script::new(&[TIME, WAY, PERMITS, include_str!("scripts/inspect.lua")]),
});

impl Script {
    fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        let digest = redis::Script::new(&text);
        Self { text, digest }
    }

    /// The command that runs it by its digest, still without its arguments. `size`: how many bytes keys and arguments
    /// have, about.
    pub(super) fn call(&self, keys: &[String], size: usize) -> Cmd {
        let mut command = Cmd::with_capacity(keys.len() + 12, size + 128);
        command.arg("EVALSHA").arg(self.digest.get_hash()).arg(keys.len());
        for key in keys {
            command.arg(key.as_bytes());
        }
        command
    }

    /// The same call, with the whole text.
    pub(super) fn in_full(&self, call: &Cmd) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.text.as_bytes());
        for arg in call.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }
}
