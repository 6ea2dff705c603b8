//! In-process admission of sections at one resource: a [`Door`] decides which sections run concurrently,
//! which wait, and which are refused.
//!
//! Needed where check and effect can't be one atomic step: the effect runs *after* the check (a handler, a
//! forwarded request), and a section with a higher token must not begin while one with a lower token is still
//! running. Pure state machine: no clock, no storage, no blocking. The caller keeps the waiting requests and
//! passes each [`WaitOutcome`] on.
//!
//! What would be lost with a check alone: A (token 5) is checked and passes, then its handler stalls; B
//! (token 6) is checked, passes, runs, ends and is acknowledged; A's handler resumes and overwrites B's
//! write. With admission, B waits until A's handler has ended; and as soon as B has asked for admission,
//! further requests with A's token are refused.
//!
//! Admission is decided by [`Marks::check`] on in-memory marks that start empty. They need to cover only the
//! time in which sections are admitted or wait; the durable marks cover everything earlier. So the order at a
//! resource is: ask for admission ([`Door::knock`]), wait until admitted, *then* check the durable marks,
//! then run the effect, then leave. A section raises the durable mark while it is admitted. So a lower token
//! that arrives later is refused in any case: by the in-memory marks until the section has left, and by the
//! durable marks from then on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rule::{Action, Marks, Refused, Section};

/// Id of a section from [`Door::knock`] to [`Door::leave`]. Unique among all `Door`s of the process and never
/// reused: a refused section may leave late, when its `Door` has been dropped and replaced by another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AdmissionId(u64);

/// The outcome for a section that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct WaitOutcome {
    /// The section that waited.
    pub id: AdmissionId,
    /// `Ok`: admitted. `Err`: refused, and removed.
    pub verdict: Result<(), Refused>,
}

/// The outcome of a [`Door::knock`] that was not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Knock {
    /// Admitted at once.
    Inside(AdmissionId),
    /// A section that is admitted must leave first; a [`WaitOutcome`] follows.
    Waits(AdmissionId),
}

static KNOCKS: AtomicU64 = AtomicU64::new(0);

/// Admission state of one resource. May be dropped while [`Door::is_unused`] is true.
#[derive(Clone, Debug, Default)]
pub struct Door {
    marks: Marks,
    /// Admitted and waiting sections. The admitted ones are pairwise compatible (`together`), and so are the
    /// waiting ones: when a new section arrives that is incompatible with a waiting one, the waiting one has
    /// the lower token and is refused.
    people: BTreeMap<AdmissionId, Person>,
}

#[derive(Clone, Copy, Debug)]
struct Person {
    action: Action,
    section: Section,
    inside: bool,
}

impl Door {
    /// Asks for admission. Waiting sections that the new section makes stale are refused; their outcomes are
    /// appended to `answers`.
    ///
    /// # Errors
    /// [`Refused`]: a section with a higher token is or was admitted or waiting here, or the mode does not
    /// allow `action`.
    pub fn knock(
        &mut self,
        action: Action,
        section: Section,
        answers: &mut Vec<WaitOutcome>,
    ) -> Result<Knock, Refused> {
        // `check_once` is checked as a write here, so that a retry is admitted beside the first try: only the
        // durable marks, which the caller checks next, record whether the token was used.
        let action = if action == Action::CheckOnce { Action::Write } else { action };
        let _ = self.marks.check(action, section)?;
        let marks = &self.marks;
        let turned_away: Vec<WaitOutcome> = self
            .people
            .iter()
            .filter(|(_, person)| !person.inside)
            .filter_map(|(id, person)| {
                let refused = marks.clone().check(person.action, person.section).err()?;
                Some(WaitOutcome { id: *id, verdict: Err(refused) })
            })
            .collect();
        for answer in &turned_away {
            self.people.remove(&answer.id);
        }
        answers.extend(turned_away);

        let id = AdmissionId(KNOCKS.fetch_add(1, Ordering::Relaxed));
        let inside = self.has_room_for(section);
        self.people.insert(id, Person { action, section, inside });
        Ok(if inside { Knock::Inside(id) } else { Knock::Waits(id) })
    }

    /// Removes a section, admitted or waiting; no effect if it was refused before. Admits the sections that
    /// waited for it; their outcomes are appended to `answers`.
    pub fn leave(&mut self, id: AdmissionId, answers: &mut Vec<WaitOutcome>) {
        self.people.remove(&id);
        let waiting: Vec<(AdmissionId, Section)> = self
            .people
            .iter()
            .filter(|(_, person)| !person.inside)
            .map(|(id, person)| (*id, person.section))
            .collect();
        for (id, section) in waiting {
            if self.has_room_for(section) {
                self.people.entry(id).and_modify(|person| person.inside = true);
                answers.push(WaitOutcome { id, verdict: Ok(()) });
            }
        }
    }

    /// Returns true if no section is admitted or waiting.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.people.is_empty()
    }

    /// The admitted sections.
    pub fn inside(&self) -> impl Iterator<Item = Section> + '_ {
        self.people.values().filter(|person| person.inside).map(|person| person.section)
    }

    /// Number of waiting sections.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.people.values().filter(|person| !person.inside).count()
    }

    fn has_room_for(&self, section: Section) -> bool {
        self.inside().all(|other| together(other, section))
    }
}

/// Whether two sections may run concurrently: the same token, two readers (F-f), or permits of different
/// slots.
#[must_use]
pub fn together(one: Section, other: Section) -> bool {
    use lockkeeper_core::ModeKind::Shared;
    one.token() == other.token()
        || (one.mode() == Shared && other.mode() == Shared)
        || matches!((one.slot(), other.slot()), (Some(one), Some(other)) if one != other)
}

#[cfg(test)]
#[path = "door_tests.rs"]
mod tests;
