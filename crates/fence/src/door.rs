//! The door of one resource: who may be inside together, who waits, and who is turned away.
//!
//! Responsible for what a fence must add when check and effect can't be one step: the effect runs *after* the check (a
//! handler, a request that is forwarded), and a section with a higher token must not begin while one with a lower token
//! is still at work. Pure: no clock, no storage, no waiting; whoever uses it keeps the waiting ones and gives each the
//! answer that it gets here.
//!
//! A trace of what a check alone loses: A (token 5) is checked and passes, then its handler stalls; B (6) is checked,
//! passes, runs, ends and is acknowledged; A's handler goes on and overwrites what B wrote. With a door, 6 waits until
//! A's handler has ended, and from the moment 6 knocks nobody below it is let in.
//!
//! The door judges by [`Marks::check`], on marks of its own that begin empty. They only have to cover the time in which
//! somebody is at the door; what was before, the durable marks know. So the order at a resource is: knock, wait to be
//! inside, *then* check the durable marks, then do the effect, then leave. Whoever is checked is inside, so a higher
//! token finds either its mark raised by us or us inside, and never neither.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rule::{Action, Marks, Refused, Section};

/// Somebody at a door, from the knock to the leaving. No number is used again, at any door: one that was turned away may
/// leave late, when its door was forgotten and another one stands there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(u64);

/// What became of somebody who waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Answer {
    /// Who waited.
    pub place: Place,
    /// Inside now; or turned away, and no longer at the door.
    pub verdict: Result<(), Refused>,
}

/// What became of a knock that was not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Knock {
    /// Inside at once.
    Inside(Place),
    /// Somebody inside must leave first; an [`Answer`] will come.
    Waits(Place),
}

static KNOCKS: AtomicU64 = AtomicU64::new(0);

/// One resource's door. Where nobody is, it may be forgotten: [`Door::is_unused`].
#[derive(Clone, Debug, Default)]
pub struct Door {
    marks: Marks,
    /// Those inside agree with each other (`together`), and so do those who wait: whoever doesn't agree with a newcomer
    /// has the lower token, and was turned away by it.
    people: BTreeMap<Place, Person>,
}

#[derive(Clone, Copy, Debug)]
struct Person {
    action: Action,
    section: Section,
    inside: bool,
}

impl Door {
    /// Asks to come in. Whoever waits and is now too late is turned away, through `answers`.
    ///
    /// # Errors
    /// [`Refused`]: a later section is or was at the door; or the section may not do this at all.
    pub fn knock(
        &mut self,
        action: Action,
        section: Section,
        answers: &mut Vec<Answer>,
    ) -> Result<Knock, Refused> {
        // Whether a token was used up, only the durable marks know: a retry may knock while the first is inside.
        let action = if action == Action::CheckOnce { Action::Write } else { action };
        let _ = self.marks.check(action, section)?;
        let marks = &self.marks;
        let turned_away: Vec<Answer> = self
            .people
            .iter()
            .filter(|(_, person)| !person.inside)
            .filter_map(|(place, person)| {
                let refused = marks.clone().check(person.action, person.section).err()?;
                Some(Answer { place: *place, verdict: Err(refused) })
            })
            .collect();
        for answer in &turned_away {
            self.people.remove(&answer.place);
        }
        answers.extend(turned_away);

        let place = Place(KNOCKS.fetch_add(1, Ordering::Relaxed));
        let inside = self.has_room_for(section);
        self.people.insert(place, Person { action, section, inside });
        Ok(if inside { Knock::Inside(place) } else { Knock::Waits(place) })
    }

    /// Ends a place, from inside or from waiting; one that was turned away already is no error. Those who waited for
    /// it come in, through `answers`.
    pub fn leave(&mut self, place: Place, answers: &mut Vec<Answer>) {
        self.people.remove(&place);
        let waiting: Vec<(Place, Section)> = self
            .people
            .iter()
            .filter(|(_, person)| !person.inside)
            .map(|(place, person)| (*place, person.section))
            .collect();
        for (place, section) in waiting {
            if self.has_room_for(section) {
                self.people.entry(place).and_modify(|person| person.inside = true);
                answers.push(Answer { place, verdict: Ok(()) });
            }
        }
    }

    /// Nobody is inside and nobody waits.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.people.is_empty()
    }

    /// Who is inside.
    pub fn inside(&self) -> impl Iterator<Item = Section> + '_ {
        self.people.values().filter(|person| person.inside).map(|person| person.section)
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.people.values().filter(|person| !person.inside).count()
    }

    fn has_room_for(&self, section: Section) -> bool {
        self.inside().all(|other| together(other, section))
    }
}

/// Whether two sections may be at work at the same time: one holder with itself, readers with readers (F-f), and
/// permits of different slots.
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
