//! How long holds last and waiters wait, for metrics (E3).

use std::collections::BTreeMap;
use std::time::Duration;

use super::Table;
use super::names::NodeId;
use super::request::RequestStage;
use crate::name::LockName;
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
    ///
    /// Adds to each of `prefixes` the oldest of its names, which are joined by their first `segments` as in
    /// [`Table::loads`]. A request of several names counts for each. Since these may be many and long, the
    /// part then ends with the request that makes it `4 * places` visits of names and of their prefixes.
    pub fn oldest_in_part<'a>(
        &self,
        cursor: u64,
        places: usize,
        segments: usize,
        prefixes: impl IntoIterator<Item = (&'a LockName, &'a mut Oldest)>,
    ) -> (Oldest, Option<u64>) {
        let used =
            prefixes.into_iter().filter_map(|(it, oldest)| Some((self.names.find(it.as_str())?, oldest)));
        let mut prefixes: BTreeMap<NodeId, &mut Oldest> = used.collect();
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let (requests, mut next) = self.requests.part(from, places);
        let (mut all, visits) = (Oldest::default(), self.visits());
        let visits_max = 4_u64.saturating_mul(places as u64);
        for (place, request) in requests {
            let since = Some(request.since).filter(|since| since.0 > 0);
            let oldest = match request.stage {
                RequestStage::Waiting { .. } => Oldest { hold: None, waiter: since },
                RequestStage::Held { .. } | RequestStage::Revoked { .. } => {
                    Oldest { hold: since, waiter: None }
                }
                RequestStage::Closed { .. } => continue,
            };
            all = all.or(oldest);
            if prefixes.is_empty() {
                continue;
            }
            for &node in request.nodes.as_slice() {
                if let Some(found) = prefixes.get_mut(&self.names.prefix(node, segments)) {
                    **found = found.or(oldest);
                }
            }
            if self.visits() - visits >= visits_max {
                next = Some(place + 1);
                break;
            }
        }
        (all, next.map(|next| next as u64))
    }
}
