//! Scripts: all steps that must be atomic. Each runs by its digest (`EVALSHA`). A server that does not have
//! it, for example after a restart, is sent the text, which also caches it there.
//!
//! The queue is in `scripts/queue.lua`, removals in `scripts/finish.lua`, wake-ups in `scripts/wait.lua`.

use std::sync::LazyLock;

use lockkeeper_backend::leased::EntryId;
use redis::{Arg, Cmd};

use super::layout::{KeySet, Keys};

/// A script and its digest.
pub(super) struct Script {
    text: String,
    digest: redis::Script,
}

/// All scripts.
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) permit: Script,
    pub(super) renew: Script,
    pub(super) renew_alone: Script,
    pub(super) finish: Script,
    pub(super) break_hold: Script,
    pub(super) inspect: Script,
}

const TIME: &str = include_str!("scripts/time.lua");
const VALUE: &str = include_str!("scripts/value.lua");
const FREE: &str = include_str!("scripts/free.lua");
const COMMON: &str = include_str!("scripts/common.lua");
const ASKED: &str = include_str!("scripts/asked.lua");
const WAY: &str = include_str!("scripts/way.lua");
const QUEUE: &str = include_str!("scripts/queue.lua");
const WAIT: &str = include_str!("scripts/wait.lua");
const PERMITS: &str = include_str!("scripts/permits.lua");
const RELEASE: &str = include_str!("scripts/release.lua");

pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| {
    let (acquire, permit) = (include_str!("scripts/acquire.lua"), include_str!("scripts/permit.lua"));
    let (renew, finish) = (include_str!("scripts/renew.lua"), include_str!("scripts/finish.lua"));
    let (break_hold, inspect) = (include_str!("scripts/break.lua"), include_str!("scripts/inspect.lua"));
    Scripts {
        acquire: Script::new(&[TIME, VALUE, FREE, COMMON, ASKED, WAY, QUEUE, WAIT, acquire]),
        permit: Script::new(&[TIME, VALUE, COMMON, ASKED, WAY, QUEUE, WAIT, PERMITS, permit]),
        renew_alone: Script::new(&[include_str!("scripts/renew_alone.lua")]),
        renew: Script::new(&[TIME, COMMON, QUEUE, PERMITS, renew]),
        finish: Script::new(&[RELEASE, TIME, COMMON, QUEUE, PERMITS, finish]),
        break_hold: Script::new(&[TIME, COMMON, QUEUE, PERMITS, break_hold]),
        inspect: Script::new(&[TIME, COMMON, WAY, PERMITS, inspect]),
    }
});

impl Script {
    fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        let digest = redis::Script::new(&text);
        Self { text, digest }
    }

    /// The command that runs the script by its digest, with the keys of a name and an entry. The caller adds
    /// the arguments.
    pub(super) fn call(&self, keys: &Keys, set: KeySet, id: &EntryId) -> Cmd {
        // Enough for all arguments of most calls.
        let mut command = Cmd::with_capacity(16, 512);
        command.arg("EVALSHA").arg(self.digest.get_hash()).arg(set as usize).arg(keys.list(set, id));
        command
    }

    /// The same call by its text instead of its digest.
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
