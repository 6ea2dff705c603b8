//! Permits (a semaphore) for lock services that keep a queue per lock, with one value per queued request
//! (etcd, ZooKeeper): selects a request's slot, or what the request waits for.
//!
//! A request may take one of N permits when fewer than N requests are ahead of it, all of them are for
//! permits, and each has written its slot. The request then writes the lowest free slot into its own value.
//! Slots are therefore taken in queue order: no two holders have the same slot, and the tokens of a slot rise
//! (P2). A request that stalls before it writes its slot delays the requests behind it until it resumes or
//! expires (P8).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use lockkeeper_core::{LockName, Mode, ModeKind, PermitGrant, Rejection};

use crate::error::{BackendError, BackendErrorKind};

/// Largest number of permits of a lock: each grant reads those of all holders.
pub const PERMITS_MAX: u32 = 1_000;

/// Poll interval of a request that does not wait, while a request ahead of it has not written its slot.
pub const SLOT_PAUSE: Duration = Duration::from_millis(10);

/// A request for a permit, as stored in its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NotePermit {
    /// The number of permits.
    pub of: u32,
    /// The permit's index; `None` until the request has written it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
}

impl NotePermit {
    /// The value of a new request, without a slot; `None` if `mode` is not `permit`. `in_use` is the limit
    /// that other requests use, if any; it is the default for a `mode` without a number.
    pub fn asked(name: &LockName, mode: Mode, in_use: Option<u32>) -> Result<Option<Self>, BackendError> {
        let Mode::Permit { of } = mode else { return Ok(None) };
        let Some(of) = of.or(in_use) else {
            return Err(Rejection::NoLimit { name: name.clone() }.into());
        };
        if of > PERMITS_MAX {
            let what =
                format!("{of} permits of `{name}`: this lock service has at most {PERMITS_MAX} of a name");
            return Err(BackendError::new(BackendErrorKind::Refused, what));
        }
        Ok(Some(Self { of, slot: None }))
    }

    /// The grant of a permit with its slot.
    pub fn grant(self) -> Option<PermitGrant> {
        Some(PermitGrant { slot: self.slot?, limit: self.of })
    }
}

/// What a request for a permit does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PermitTurn {
    /// Takes this slot.
    Takes {
        /// From 0 on.
        slot: u32,
    },
    /// Waits until this contender changes or ends.
    AwaitsChange {
        /// Index of the contender in `earlier` of [`permit_turn`].
        at: usize,
    },
    /// A permit is free, but this earlier request must write its slot first.
    AwaitsSlot {
        /// Index of the earlier request in `earlier` of [`permit_turn`].
        at: usize,
    },
    /// Waits until any earlier contender ends.
    AwaitsEnd,
    /// The request is refused: an earlier request has another number of permits (L3).
    Mismatch {
        /// The earlier request's number of permits.
        have: u32,
    },
}

/// Decides the next step of a request for one of `of` permits. `earlier` lists the contenders ahead of the
/// request, the nearest first: all of them, or at least `of`. `None` stands for a contender in another mode.
pub fn permit_turn(earlier: &[Option<NotePermit>], of: u32) -> PermitTurn {
    if let Some(other) = earlier.iter().flatten().find(|other| other.of != of) {
        return PermitTurn::Mismatch { have: other.of };
    }
    let is_full = earlier.len() >= of as usize;
    if is_full || earlier.iter().any(Option::is_none) {
        return match earlier.first() {
            Some(Some(NotePermit { slot: Some(_), .. })) => PermitTurn::AwaitsEnd,
            _ => PermitTurn::AwaitsChange { at: 0 },
        };
    }
    let mut taken: Vec<u32> = earlier.iter().flatten().filter_map(|other| other.slot).collect();
    if let Some(at) = earlier.iter().flatten().position(|other| other.slot.is_none()) {
        return PermitTurn::AwaitsSlot { at };
    }
    taken.sort_unstable();
    let lowest = (0..).zip(taken).find(|(slot, taken)| slot != taken).map(|(slot, _)| slot);
    PermitTurn::Takes { slot: lowest.unwrap_or(earlier.len() as u32) }
}

/// Number of waiters ahead of a request, for display. `earlier` lists the modes of the contenders ahead, in
/// queue order; `permit` is the request's own permit. The first contenders count as holders: as many as there
/// are permits, or all shared ones at the front, or one.
pub fn waiters_ahead(earlier: impl Iterator<Item = ModeKind> + Clone, permit: Option<NotePermit>) -> u64 {
    let shared = earlier.clone().take_while(|kind| *kind == ModeKind::Shared).count();
    let holders = permit.map_or(shared.max(1), |permit| permit.of as usize);
    earlier.count().saturating_sub(holders) as u64
}

/// The error for a request whose number of permits differs from the number in use.
pub fn other_limit(name: &LockName, have: u32, asked: u32) -> BackendError {
    Rejection::LimitMismatch { name: name.clone(), have, asked }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next step of a request behind `queue`, one character per contender: `x` is not a permit, `?` is a
    /// permit without a slot, a digit is a permit's slot.
    fn turn(queue: &str, of: u32) -> PermitTurn {
        let contender = |mark: char| match mark {
            'x' => None,
            mark => Some(NotePermit { of: 3, slot: mark.to_digit(10) }),
        };
        permit_turn(&queue.chars().rev().map(contender).collect::<Vec<_>>(), of)
    }

    #[test]
    fn lowest_free_slot_is_taken() {
        for (queue, slot) in [("", 0), ("0", 1), ("1", 0), ("20", 1), ("12", 0)] {
            assert_eq!(turn(queue, 3), PermitTurn::Takes { slot }, "{queue}");
        }
    }

    #[test]
    fn slots_are_taken_in_the_order_of_the_queue() {
        assert_eq!(turn("0?", 3), PermitTurn::AwaitsSlot { at: 0 });
        assert_eq!(turn("?1", 3), PermitTurn::AwaitsSlot { at: 1 });
    }

    #[test]
    fn first_waiter_awaits_the_end_of_any_holder_and_others_the_one_before() {
        assert_eq!(turn("012", 3), PermitTurn::AwaitsEnd);
        assert_eq!(turn("012?", 3), PermitTurn::AwaitsChange { at: 0 });
        assert_eq!(turn("0x", 3), PermitTurn::AwaitsChange { at: 0 });
        assert_eq!(turn("x?", 3), PermitTurn::AwaitsChange { at: 0 });
    }

    #[test]
    fn holders_are_no_waiters() {
        let ahead = |queue: &str, of: Option<u32>| {
            let kind = |mark: char| match mark {
                'x' => ModeKind::Exclusive,
                'r' => ModeKind::Shared,
                _ => ModeKind::Permit,
            };
            waiters_ahead(queue.chars().map(kind), of.map(|of| NotePermit { of, slot: None }))
        };
        assert_eq!([ahead("x", None), ahead("xx", None), ahead("xr", None)], [0, 1, 1]);
        assert_eq!([ahead("rrr", None), ahead("rrrx", None)], [0, 1]);
        assert_eq!([ahead("ppp", Some(3)), ahead("ppppp", Some(3)), ahead("pp", Some(3))], [0, 2, 0]);
    }

    #[test]
    fn another_number_of_permits_is_refused() {
        assert_eq!(turn("0", 2), PermitTurn::Mismatch { have: 3 });
        assert_eq!(turn("x?", 4), PermitTurn::Mismatch { have: 3 });
    }

    #[test]
    fn number_of_permits_is_the_one_asked_for_or_the_one_in_use() {
        let name = LockName::parse("x").unwrap();
        let asked = |of, in_use| NotePermit::asked(&name, Mode::Permit { of }, in_use);
        assert_eq!(asked(Some(2), None).unwrap().unwrap().of, 2);
        assert_eq!(asked(None, Some(4)).unwrap().unwrap().of, 4);
        assert!(asked(None, None).unwrap_err().message.contains("say how many"));
        assert!(asked(Some(1_001), None).unwrap_err().message.contains("1000"));
        assert_eq!(NotePermit::asked(&name, Mode::Shared, None).unwrap(), None);
    }
}
