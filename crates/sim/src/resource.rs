//! The protected resources. Sections read and write them, and may be stale. Each resource has a value behind
//! the production fence (P3), and an unfenced copy. The copies lose updates, which are counted: they show
//! that the fence is needed.

use std::collections::BTreeMap;

use lockkeeper_fence::{MemoryFence, Section};

/// The values of all resources, one for each resource and for each slot of a permit.
#[derive(Default)]
pub(crate) struct Resources {
    fence: MemoryFence,
    fenced: Values,
    unfenced: Values,
    /// Sections that the fence rejected. If thousands of runs have none, they never needed the fence.
    pub(crate) refused: u64,
    pub(crate) written: u64,
    /// Lost updates of the unfenced copies.
    pub(crate) lost: u64,
    checks: Checks,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Checks {
    #[default]
    EnterAndWrite,
    WriteOnly,
    Nothing,
}

/// How often each value was written, by resource and slot. Exclusive sections write the slot `None`.
#[derive(Default)]
struct Values(BTreeMap<(String, Option<u32>), u64>);

/// The write counts that a section has read.
type Read = Vec<((String, Option<u32>), u64)>;

/// The values that a section read when it entered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SectionRead {
    /// `None` if the fence rejected the section.
    fenced: Option<Read>,
    unfenced: Read,
}

impl Values {
    /// The section of a permit depends on its own slot, and on the writes of exclusive sections. An exclusive
    /// section depends on all slots.
    fn read(&self, name: &str, slot: Option<u32>) -> Read {
        let of_name = self.0.iter().filter(|((other, _), _)| other == name);
        let read = of_name.filter(|((_, part), _)| slot.is_none() || part.is_none() || *part == slot);
        read.map(|(key, version)| (key.clone(), *version)).collect()
    }

    fn write(&mut self, name: &str, slot: Option<u32>) {
        *self.0.entry((name.to_owned(), slot)).or_default() += 1;
    }
}

impl Resources {
    pub(crate) fn new(checks: Checks) -> Self {
        Self { checks, ..Self::default() }
    }

    /// Enters the fence and reads the values.
    pub(crate) fn enter(&mut self, name: &str, section: Section) -> SectionRead {
        let unfenced = self.unfenced.read(name, section.slot());
        if self.checks == Checks::EnterAndWrite && self.fence.enter(name, section).is_err() {
            self.refused += 1;
            return SectionRead { fenced: None, unfenced };
        }
        SectionRead { fenced: Some(self.fenced.read(name, section.slot())), unfenced }
    }

    /// Increments the value. Returns whether the fence accepted the write. `Err`: the fence accepted a write
    /// that overwrites an update which another section has made since this section entered.
    pub(crate) fn write(&mut self, name: &str, section: Section, seen: &SectionRead) -> Result<bool, String> {
        let slot = section.slot();
        if self.unfenced.read(name, slot) != seen.unfenced {
            self.lost += 1;
        }
        self.unfenced.write(name, slot);
        let Some(read) = &seen.fenced else { return Ok(false) };
        if self.checks != Checks::Nothing && self.fence.write(name, section, || ()).is_err() {
            self.refused += 1;
            return Ok(false);
        }
        let now = self.fenced.read(name, slot);
        if now != *read {
            return Err(format!(
                "token {} read {read:?} of {name}, and overwrote {now:?}: an update is lost",
                section.token()
            ));
        }
        self.fenced.write(name, slot);
        self.written += 1;
        Ok(true)
    }
}
