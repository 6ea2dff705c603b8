//! The two-mark rule: who may pass a fence, and how its marks rise.
//!
//! Responsible for the whole decision of every fence (F-a to F-d), as one pure function over plain data:
//! [`Marks::check`]. May not read a clock, store anything or know what the resource is; the fences around it make
//! check, marks and effect one atomic, durable step.
//!
//! A resource has a base pair of marks and one pair per slot seen. In a pair, `any` is the highest token that came
//! through and `writer` the highest that came through as a writer. Why two: with one mark, readers that hold the
//! lock together would turn each other away, since the later of them has the higher token.

use std::collections::BTreeMap;
use std::fmt;

use lockkeeper_core::limits::PERMITS_MAX;
use lockkeeper_core::{ModeKind, Slot, Token};

/// Who asks at a fence: the mode, slot and token of the hold under which the section runs (F-a).
///
/// A section is parsed once; the rule cannot meet a slot without a permit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Section {
    mode: ModeKind,
    slot: Option<Slot>,
    token: Token,
}

impl Section {
    /// A section under an exclusive hold. A writer with no slot: it faces the marks of every slot.
    #[must_use]
    pub const fn exclusive(token: Token) -> Self {
        Self { mode: ModeKind::Exclusive, slot: None, token }
    }

    /// A section under a shared hold: it may enter and read, never write (F-c).
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

    /// A section from its parts, as they come from a command line or a request.
    ///
    /// A permit without a slot is allowed: it is checked like an exclusive hold, against every slot.
    ///
    /// # Errors
    /// [`Refused::SlotWithoutPermit`] for a slot with another mode: an exclusive hold that is checked in one slot
    /// only would be weaker than it looks. [`Refused::SlotTooHigh`] if no lock has that many permits.
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

    /// Which permit is held, if the mode is permit and the lock tells.
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

/// What a section wants at the fence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Raise the marks before reading what will be written.
    Enter,
    /// Check, then write in the same atomic step.
    Write,
    /// Check for one blind effect per grant; stands for enter and write, and refuses an equal token (F-d).
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

/// Two marks. `None` is a mark that no token has reached yet: any token passes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pair {
    /// The highest token that came through.
    pub any: Option<Token>,
    /// The highest token that came through as a writer; never above `any`.
    pub writer: Option<Token>,
}

impl Pair {
    /// The greater of each mark.
    fn max(self, other: Self) -> Self {
        Self { any: self.any.max(other.any), writer: self.writer.max(other.writer) }
    }
}

/// What a fence remembers of one resource (F-b). The default is a resource never seen, which accepts any token.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Marks {
    /// The marks for tokens without a slot, and of every slot never seen.
    pub base: Pair,
    /// The pairs of slots that were seen and say more than the base. A slot's effective marks are the greater of
    /// its own and the base's.
    pub slots: BTreeMap<Slot, Pair>,
}

/// A check that passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Passed {
    /// The marks rose, and must be durable before the effect.
    Raised,
    /// The marks already said so: this section has been here.
    Unchanged,
}

impl Marks {
    /// The rule. If `section` may do `action`, raises the marks; if not, changes nothing.
    ///
    /// A writer passes if its token reaches `any`, and both marks become its token; a reader passes if its token
    /// reaches `writer`, and `any` becomes the greater. So live readers don't turn each other away, and a late
    /// writer can't slip under a reader. A section with a slot faces, and raises, the marks of that slot only; one
    /// without faces those of every slot, and raises the base and all.
    ///
    /// Equal tokens pass, since one holder writes many times; only [`Action::CheckOnce`] refuses them.
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

    /// The marks that a section with `slot` faces.
    #[must_use]
    pub fn effective(&self, slot: Slot) -> Pair {
        self.slots.get(&slot).map_or(self.base, |own| own.max(self.base))
    }

    /// Raises one slot, or the base and all; tells whether anything rose.
    fn raise(&mut self, slot: Option<Slot>, to: Pair) -> bool {
        let Some(slot) = slot else {
            let mut rose = false;
            for pair in self.slots.values_mut().chain([&mut self.base]) {
                let before = std::mem::replace(pair, pair.max(to));
                rose |= *pair != before;
            }
            // A slot that says no more than the base says nothing: dropped, so that marks stay small and equal
            // marks look alike.
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

/// Why a fence let nothing happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A later section has been here (P3).
    #[error(
        "token {offered} is stale: token {highest} has been here; nothing was done. Stop this section: \
         its lock is lost. Acquire the lock again, enter with the new token, and read again"
    )]
    Stale {
        /// The token of the section that asked.
        offered: Token,
        /// The mark that it had to reach.
        highest: Token,
    },
    /// `check_once` with a token that was here before (F-d).
    #[error(
        "token {token} has been here before, and check_once lets a token through once; nothing was done. \
         If this is a retry, the first try passed; after enter use write, not check_once"
    )]
    Repeated {
        /// The token of the section that asked.
        token: Token,
    },
    /// A write under a shared hold (F-c).
    #[error("mode shared may only enter and read, not {action}; acquire the lock exclusively to write")]
    SharedWrite {
        /// What was asked.
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
