//! The two-mark rule: which sections pass a fence, and how they raise its marks.
//!
//! Contains the whole decision (F-a to F-d) as one pure function over plain data: [`Marks::check`]. It reads
//! no clock, stores nothing and does not depend on the resource; the fence that calls it makes check, marks
//! and effect one atomic, durable step. The fences whose server makes the check implement the same rule in
//! its language (Redis: Lua, PostgreSQL: SQL, DynamoDB: conditions), and tests compare them with this
//! function.
//!
//! A resource has a base pair of marks, and one pair for each slot whose marks are above the base. In a pair,
//! `any` is the highest token that passed and `writer` the highest token that passed as a writer. Two marks
//! are needed because shared holders have different tokens: with one mark, the reader with the highest token
//! would cause all other readers to be refused.

use std::collections::BTreeMap;
use std::fmt;

use lockkeeper_core::limits::PERMITS_MAX;
use lockkeeper_core::{ModeKind, Slot, Token};

/// The mode, slot and token of the hold under which a section runs (F-a).
///
/// Validated on construction: only a permit has a slot, and the slot is below the limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Section {
    mode: ModeKind,
    slot: Option<Slot>,
    token: Token,
}

impl Section {
    /// A section under an exclusive hold: a writer, checked against the base marks and those of every slot.
    #[must_use]
    pub const fn exclusive(token: Token) -> Self {
        Self { mode: ModeKind::Exclusive, slot: None, token }
    }

    /// A section under a shared hold: it may enter and read, but never write (F-c).
    #[must_use]
    pub const fn shared(token: Token) -> Self {
        Self { mode: ModeKind::Shared, slot: None, token }
    }

    /// A section under a permit of `slot`.
    ///
    /// # Errors
    /// [`Refused::SlotTooHigh`] if no lock has that many permits.
    pub const fn permit(slot: Slot, token: Token) -> Result<Self, Refused> {
        Self::new(ModeKind::Permit, Some(slot), token)
    }

    /// A section from its parts, e.g. from a command line or a request.
    ///
    /// A permit without a slot is valid: like an exclusive hold, it is checked against every slot.
    ///
    /// # Errors
    /// [`Refused::SlotWithoutPermit`] for a slot with another mode: an exclusive hold that is checked against
    /// one slot only would protect less than its mode promises. [`Refused::SlotTooHigh`] if no lock has that
    /// many permits.
    pub const fn new(mode: ModeKind, slot: Option<Slot>, token: Token) -> Result<Self, Refused> {
        match (mode, slot) {
            (ModeKind::Permit, Some(slot)) if slot >= PERMITS_MAX => Err(Refused::SlotTooHigh { slot }),
            (ModeKind::Exclusive | ModeKind::Shared, Some(slot)) => {
                Err(Refused::SlotWithoutPermit { mode, slot })
            }
            _ => Ok(Self { mode, slot, token }),
        }
    }

    /// The mode of the hold.
    #[must_use]
    pub const fn mode(self) -> ModeKind {
        self.mode
    }

    /// The slot of the permit, if the mode is permit and the lock reports the slot.
    #[must_use]
    pub const fn slot(self) -> Option<Slot> {
        self.slot
    }

    /// The token of the hold.
    #[must_use]
    pub const fn token(self) -> Token {
        self.token
    }
}

/// The operation that a section requests at the fence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Raise the marks before reading the data that will be written.
    Enter,
    /// Check, then write in the same atomic step.
    Write,
    /// Enter and write in one step, for an effect that does not depend on anything read before. Refuses a
    /// token equal to the mark, so each token passes once (F-d).
    CheckOnce,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enter => "enter",
            Self::Write => "write",
            Self::CheckOnce => "check_once",
        })
    }
}

/// The two marks of one slot, or of the base. `None` means that no such token has passed yet: any token
/// passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pair {
    /// The highest token that passed.
    pub any: Option<Token>,
    /// The highest token that passed as a writer; never above `any`.
    pub writer: Option<Token>,
}

impl Pair {
    /// The greater of the two values, for each mark.
    fn max(self, other: Self) -> Self {
        Self { any: self.any.max(other.any), writer: self.writer.max(other.writer) }
    }
}

/// The marks of one resource (F-b). The default is a resource never seen, which accepts any token.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Marks {
    /// The marks for tokens without a slot. They also apply to every slot that was never seen.
    pub base: Pair,
    /// The pairs of seen slots with a mark above the base. A slot's effective marks are the greater of its
    /// own and the base's.
    pub slots: BTreeMap<Slot, Pair>,
}

/// A check that passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Passed {
    /// The marks rose, and must be durable before the effect.
    Raised,
    /// No mark rose: the token has passed before; or it is a reader's, and `any` is above it already, raised
    /// by a reader with a higher token.
    Unchanged,
}

impl Marks {
    /// Applies the rule: if `section` may do `action`, raises the marks; otherwise changes nothing.
    ///
    /// A writer passes if its token is at least `any`, and both marks become its token. A reader passes if
    /// its token is at least `writer`, and `any` rises to its token if that is higher. So current readers
    /// don't cause each other to be refused, and a delayed writer is refused once a reader with a higher
    /// token has entered. A section with a slot is checked against the effective marks of that slot
    /// ([`Marks::effective`]), and raises that slot only; one without a slot is checked against the marks of
    /// every slot, and raises the base and all slots.
    ///
    /// A token equal to the mark passes, since one holder may write many times; only [`Action::CheckOnce`]
    /// refuses it.
    ///
    /// # Errors
    /// [`Refused::Stale`], [`Refused::Repeated`] and [`Refused::SharedWrite`].
    pub fn check(&mut self, action: Action, section: Section) -> Result<Passed, Refused> {
        let Section { mode, slot, token } = section;
        let reader = mode == ModeKind::Shared;
        if reader && action != Action::Enter {
            return Err(Refused::SharedWrite { action });
        }
        let seen = match slot {
            Some(slot) => self.effective(slot),
            None => self.slots.values().fold(self.base, |seen, own| seen.max(*own)),
        };
        match if reader { seen.writer } else { seen.any } {
            Some(highest) if token < highest => return Err(Refused::Stale { offered: token, highest }),
            Some(highest) if token == highest && action == Action::CheckOnce => {
                return Err(Refused::Repeated { token });
            }
            _ => {}
        }
        let to = Pair { any: Some(token), writer: if reader { None } else { Some(token) } };
        Ok(if self.raise(slot, to) { Passed::Raised } else { Passed::Unchanged })
    }

    /// The marks against which a section with `slot` is checked.
    #[must_use]
    pub fn effective(&self, slot: Slot) -> Pair {
        self.slots.get(&slot).map_or(self.base, |own| own.max(self.base))
    }

    /// Raises one slot, or the base and all slots; returns whether a mark rose.
    fn raise(&mut self, slot: Option<Slot>, to: Pair) -> bool {
        let Some(slot) = slot else {
            let mut rose = false;
            for pair in self.slots.values_mut().chain([&mut self.base]) {
                let before = std::mem::replace(pair, pair.max(to));
                rose |= *pair != before;
            }
            // Drops slots without a mark above the base, so that the marks stay small, and equal marks have
            // equal representations.
            let base = self.base;
            self.slots.retain(|_, own| own.max(base) != base);
            return rose;
        };
        let before = self.effective(slot);
        let after = before.max(to);
        if after != before {
            self.slots.insert(slot, after);
        }
        after != before
    }
}

/// Why a fence refused a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A later section has passed the fence (P3).
    #[error(
        "token {offered} is stale: token {highest} has been here; nothing was done. Stop this section: \
         its lock is lost. Acquire the lock again, enter with the new token, and read again"
    )]
    Stale {
        /// The token of the refused section.
        offered: Token,
        /// The mark, which is above the section's token.
        highest: Token,
    },
    /// `check_once` with a token that has passed before (F-d).
    #[error(
        "token {token} has been here before, and check_once lets a token through once; nothing was done. \
         If this is a retry, the first try passed; after enter use write, not check_once"
    )]
    Repeated {
        /// The token of the refused section.
        token: Token,
    },
    /// A write under a shared hold (F-c).
    #[error("mode shared may only enter and read, not {action}; acquire the lock exclusively to write")]
    SharedWrite {
        /// The refused action.
        action: Action,
    },
    /// A slot with a mode that has none.
    #[error(
        "slot {slot} given with mode {mode}; only mode permit has slots: leave the slot out, or ask as permit"
    )]
    SlotWithoutPermit {
        /// The mode that was given.
        mode: ModeKind,
        /// The slot that was given.
        slot: Slot,
    },
    /// A slot that no lock can have.
    #[error("slot {slot} is too high: a lock has at most {PERMITS_MAX} permits, so its slots end at {}", PERMITS_MAX - 1)]
    SlotTooHigh {
        /// The slot that was given.
        slot: Slot,
    },
}
