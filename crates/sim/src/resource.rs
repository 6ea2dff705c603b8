//! What the locks protect: values behind the production fence, read and written by sections that may be stale (P3).

use std::collections::BTreeMap;

use lockkeeper_fence::{MemoryFence, Section};

/// A value per resource, and per permit's slot.
#[derive(Default)]
pub(crate) struct Resources {
    fence: MemoryFence,
    /// How often each part was written: `None` is what exclusive sections write.
    versions: BTreeMap<(String, Option<u32>), u64>,
    /// Sections that were turned away: if there are none in thousands of runs, the fence was never needed.
    pub(crate) refused: u64,
    pub(crate) written: u64,
    checks: Checks,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Checks {
    #[default]
    EnterAndWrite,
    WriteOnly,
    Nothing,
}

/// What a section saw when it read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen(Vec<((String, Option<u32>), u64)>);

impl Resources {
    pub(crate) fn new(checks: Checks) -> Self {
        Self { checks, ..Self::default() }
    }

    /// Enters and reads. `None`: turned away.
    pub(crate) fn enter(&mut self, name: &str, section: Section) -> Option<Seen> {
        if self.checks == Checks::EnterAndWrite && self.fence.enter(name, section).is_err() {
            self.refused += 1;
            return None;
        }
        Some(self.see(name, section.slot()))
    }

    /// Writes one more than it read. `Err`: an update of another section between the two is lost.
    pub(crate) fn write(&mut self, name: &str, section: Section, seen: &Seen) -> Result<bool, String> {
        if self.checks != Checks::Nothing && self.fence.write(name, section, || ()).is_err() {
            self.refused += 1;
            return Ok(false);
        }
        let now = self.see(name, section.slot());
        if now != *seen {
            return Err(format!(
                "token {} read {seen:?} of {name}, and overwrote {now:?}: an update is lost",
                section.token()
            ));
        }
        *self.versions.entry((name.to_owned(), section.slot())).or_default() += 1;
        self.written += 1;
        Ok(true)
    }

    /// A permit's section depends on its own slot and on what exclusive ones wrote; an exclusive one on everything.
    fn see(&self, name: &str, slot: Option<u32>) -> Seen {
        let of_name = self.versions.iter().filter(|((other, _), _)| other == name);
        let seen = of_name.filter(|((_, part), _)| slot.is_none() || part.is_none() || *part == slot);
        Seen(seen.map(|(key, version)| (key.clone(), *version)).collect())
    }
}
