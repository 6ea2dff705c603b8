//! Lock services of others.

use std::path::Path;

use crate::Result;
use crate::plan::{Fault, Kind, Victim};
use crate::workers::Workers;

/// The values of `--on`.
pub(crate) const NAMES: [&str; 1] = ["own"];

/// The faults that a service of others must stand.
pub(crate) fn kinds(_service: &str) -> Vec<Kind> {
    vec![Kind::Kill(Victim::Worker)]
}

pub(crate) struct Other {
}

impl Other {
    pub(crate) fn start(_service: &str, _folder: &Path) -> Result<Self> {
        Ok(Self {})
    }

    pub(crate) fn urls(&self, _workers: usize) -> Vec<(String, Option<usize>)> {
        Vec::new()
    }

    pub(crate) async fn play(
        &mut self,
        _fault: &Fault,
        _workers: &mut Workers,
        mut _tell: impl FnMut(&str, bool),
    ) -> Result<bool> {
        Ok(true)
    }
}
