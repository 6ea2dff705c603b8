//! Which refusals are recorded.
//!
//! Responsible for: anybody can cause refusals, and they must not fill the audit trail; one caller who is
//! refused all the time hides neither another caller's refusals nor how many were left out.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::access::Identity;

/// Most refusals of one kind and one caller that are recorded in [`PERIOD`].
pub(crate) const OF_CALLER_MAX: u32 = 10;
/// Most of all callers; the second half is for the first refusal of each caller. The audit files have room
/// for refusals of all kinds, with names of the largest size, for a day at least, so refusals can't push
/// other records out of them unnoticed.
const OF_ALL_MAX: u32 = 40;
pub(crate) const PERIOD: Duration = Duration::from_secs(60);

/// The refusals of one kind.
pub(crate) struct Refusals {
    pub(crate) since: Instant,
    /// Those that were recorded in this period.
    recorded: u32,
    /// How many of them each caller has; so at most [`OF_ALL_MAX`] callers are remembered.
    by_caller: HashMap<String, u32>,
    /// Those of any caller that were not, since the last one that was.
    pub(crate) left_out: u64,
}

impl Refusals {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, recorded: 0, by_caller: HashMap::new(), left_out: 0 }
    }

    /// Whether one more is recorded, of this caller; counts it either way.
    pub(crate) fn is_recorded(&mut self, caller: &str, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= PERIOD {
            *self = Self { left_out: self.left_out, ..Self::new(now) };
        }
        let of_caller = self.by_caller.get(caller).copied().unwrap_or(0);
        let most = if of_caller == 0 { OF_ALL_MAX } else { OF_ALL_MAX / 2 };
        let is_recorded = of_caller < OF_CALLER_MAX && self.recorded < most;
        if is_recorded {
            self.recorded += 1;
            self.by_caller.insert(caller.to_owned(), of_caller + 1);
        } else {
            self.left_out += 1;
        }
        is_recorded
    }
}

/// Whom a refusal is counted for: an identity, or the network of a caller without one.
pub(crate) fn caller(identity: &Identity, address: &str) -> String {
    let network = address.parse().map(|address: SocketAddr| lockkeeper_places::network(address.ip()));
    match network {
        Ok(network) if *identity == Identity::ANONYMOUS => network.to_string(),
        _ => identity.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_that_is_refused_all_the_time_does_not_hide_others_and_all_have_a_bound() {
        let now = Instant::now();
        let mut refusals = Refusals::new(now);
        let mut recorded = |caller: &str, times: u32| {
            (0..times).filter(|_| refusals.is_recorded(caller, now)).count() as u32
        };
        assert_eq!([recorded("noisy", 500), recorded("loud", 500)], [OF_CALLER_MAX; 2]);
        // The first of each is recorded, also when the others have used up what is for repetitions.
        assert_eq!([recorded("quiet", 3), recorded("silent", 3)], [1, 1]);
        let crowd: u32 = (0..100).map(|number| recorded(&format!("crowd-{number}"), 2)).sum();
        assert_eq!(2 * OF_CALLER_MAX + 2 + crowd, OF_ALL_MAX);
        assert!(refusals.by_caller.len() <= OF_ALL_MAX as usize);
        assert!(refusals.is_recorded("noisy", now + PERIOD), "a new period");
    }

    #[test]
    fn callers_without_an_identity_are_told_apart_by_their_networks() {
        let of = |address| caller(&Identity::ANONYMOUS, address);
        assert_eq!(of("192.0.2.1:7"), of("192.0.2.1:8"));
        assert_ne!(of("192.0.2.1:7"), of("192.0.2.2:7"));
        assert_eq!(of("[2001:db8::1]:7"), of("[2001:db8::2]:7"));
        assert_eq!(caller(&Identity::new("shop").unwrap(), "192.0.2.1:7"), "shop");
    }
}
