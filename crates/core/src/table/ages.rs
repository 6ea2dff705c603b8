//! How long holds last and waiters wait, for metrics (E3).

use std::time::Duration;

use super::Table;
use super::request::RequestStage;
use crate::types::WallTime;

/// The oldest of some requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Oldest {
    /// When the oldest hold was granted; `None` if there is none of a known time.
    pub hold: Option<WallTime>,
    /// When the longest waiter was queued.
    pub waiter: Option<WallTime>,
}

impl Oldest {
    /// The oldest of both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let older = |a: Option<WallTime>, b: Option<WallTime>| a.into_iter().chain(b).min();
        Self { hold: older(self.hold, other.hold), waiter: older(self.waiter, other.waiter) }
    }
}

impl Table {
    /// How long each waiter that the last command has granted had waited, by the leaders' wall clocks.
    #[must_use]
    pub fn granted_after(&self) -> &[Duration] {
        &self.granted_after
    }

    /// The oldest hold and waiter in `places` slab entries from `cursor` (initially 0), and the next cursor,
    /// `None` at the end. Closed holds don't count.
    #[must_use]
    pub fn oldest_in_part(&self, cursor: u64, places: usize) -> (Oldest, Option<u64>) {
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let (requests, next) = self.requests.part(from, places);
        let mut oldest = Oldest::default();
        for request in requests {
            let since = Some(request.since).filter(|since| since.0 > 0);
            oldest = oldest.or(match request.stage {
                RequestStage::Waiting { .. } => Oldest { hold: None, waiter: since },
                RequestStage::Held { .. } | RequestStage::Revoked { .. } => {
                    Oldest { hold: since, waiter: None }
                }
                RequestStage::Closed { .. } => Oldest::default(),
            });
        }
        (oldest, next.map(|next| next as u64))
    }
}
