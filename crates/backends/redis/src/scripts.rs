//! Scripts: all steps that must be atomic, one file for each operation. Each runs by its digest (`EVALSHA`).
//! A server that does not have it, for example after a restart, is sent the text, which also caches it there.
//!
//! A line `-- include NAME` stands for the text of that file in `scripts/parts`, unless an earlier line has
//! included it. In each script, the usual case comes before the parts that only other cases need, because a
//! script defines its functions at each run.

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
    pub(super) acquire_permit: Script,
    pub(super) renew: Script,
    pub(super) renew_alone: Script,
    pub(super) finish: Script,
    pub(super) break_hold: Script,
    pub(super) inspect: Script,
}

macro_rules! parts {
    ($($name:literal)+) => { &[$(($name, include_str!(concat!("scripts/parts/", $name, ".lua")))),+] };
}

const PARTS: &[(&str, &str)] = parts!("conflict" "keys" "permits" "queue" "request" "time" "value" "wait");

pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    acquire: Script::new(include_str!("scripts/acquire.lua")),
    acquire_permit: Script::new(include_str!("scripts/acquire_permit.lua")),
    renew: Script::new(include_str!("scripts/renew.lua")),
    renew_alone: Script::new(include_str!("scripts/renew_alone.lua")),
    finish: Script::new(include_str!("scripts/finish.lua")),
    break_hold: Script::new(include_str!("scripts/break_hold.lua")),
    inspect: Script::new(include_str!("scripts/inspect.lua")),
});

/// Appends a script's text, with the parts that it and they include.
fn expand(text: &str, included: &mut Vec<&'static str>, out: &mut String) {
    for line in text.lines() {
        let Some(wanted) = line.strip_prefix("-- include ") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let (name, part) = PARTS.iter().find(|(name, _)| *name == wanted).expect("a part of this name");
        if !included.contains(name) {
            included.push(name);
            expand(part, included, out);
        }
    }
}

impl Script {
    fn new(operation: &str) -> Self {
        let mut text = String::new();
        expand(operation, &mut Vec::new(), &mut text);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_include_names_a_part_and_adds_it_once() {
        let scripts = &*SCRIPTS;
        for script in [&scripts.acquire, &scripts.acquire_permit, &scripts.finish, &scripts.break_hold] {
            assert!(!script.text.contains("-- include"), "{}", script.text);
            assert_eq!(script.text.matches("call('TIME')").count(), 1, "{}", script.text);
        }
    }
}
