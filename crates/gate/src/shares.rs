//! Limits on connections and requests: in total, for the clients of one network, and for requests other than
//! guarded writes.

use std::net::IpAddr;
use std::sync::Arc;

use lockkeeper_places::{NoPlace, Places, TakenPlace, network};

/// Counts connections or requests against their limits: `max` in total, half of them for one network.
#[derive(Debug)]
pub(crate) struct Shares {
    all: Arc<Places<IpAddr>>,
    /// Connections or requests that are not [`Priority::First`]; at most three quarters of each limit.
    others: Arc<Places<IpAddr>>,
}

/// Whether a request may use the last quarter of a limit: only `First` may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Priority {
    First,
    Others,
}

/// One counted connection or request; uncounted when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    _of_all: TakenPlace<IpAddr>,
    _of_others: Option<TakenPlace<IpAddr>>,
}

/// The limit of [`Priority::Others`].
fn others_max(max: usize) -> usize {
    max - max / 4
}

impl Shares {
    pub(crate) fn new(max: usize) -> Self {
        let half = max.div_ceil(2);
        let others = Places::with_share(others_max(max), others_max(half));
        Self { all: Places::with_share(max, half), others }
    }

    /// Counts a connection or request of a client.
    ///
    /// # Errors
    /// A limit is reached.
    pub(crate) fn take(&self, client: IpAddr, priority: Priority) -> Result<Share, NoPlace> {
        let holder = Some(network(client));
        let _of_others = match priority {
            Priority::First => None,
            Priority::Others => Some(self.others.take(holder)?),
        };
        Ok(Share { _of_all: self.all.take(holder)?, _of_others })
    }

    /// The number in use.
    pub(crate) fn taken(&self) -> usize {
        self.all.taken()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_network_gets_half_and_others_leave_a_quarter_to_what_comes_first() {
        let shares = Shares::new(16);
        let [first, second, third] = ["192.0.2.1", "2001:db8::1", "192.0.2.3"].map(address);
        let take = |client, priority| shares.take(client, priority);
        let mut held: Vec<_> = (0..6).map(|_| take(first, Priority::Others).unwrap()).collect();
        assert_eq!(take(first, Priority::Others).unwrap_err(), NoPlace::OfHolder(6));
        held.extend((0..2).map(|_| take(first, Priority::First).unwrap()));
        assert_eq!(take(first, Priority::First).unwrap_err(), NoPlace::OfHolder(8));
        held.extend((0..6).map(|_| take(second, Priority::Others).unwrap()));
        let neighbour = take(address("2001:db8::ffff:1"), Priority::Others);
        assert_eq!(neighbour.unwrap_err(), NoPlace::InAll(12), "all of those without priority are taken");
        held.extend((0..2).map(|_| take(third, Priority::First).unwrap()));
        assert_eq!(take(third, Priority::First).unwrap_err(), NoPlace::InAll(16));
        held.clear();
        assert_eq!(shares.taken(), 0);
    }

    #[test]
    fn a_limit_of_one_is_one() {
        let shares = Shares::new(1);
        let only = shares.take(address("192.0.2.1"), Priority::Others).unwrap();
        assert_eq!(shares.take(address("192.0.2.2"), Priority::First).unwrap_err(), NoPlace::InAll(1));
        drop(only);
    }
}
