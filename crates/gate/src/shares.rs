//! Limits on numbers, such as of connections or requests: in all, for the clients of one network, and for requests that are no
//! guarded writes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is counted, and the limits.
#[derive(Debug)]
pub(crate) struct Shares {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: Count,
    /// Has only networks with something taken, so it is no larger than `max`.
    by_network: HashMap<IpAddr, Count>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: usize,
    /// Those that are not [`Priority::First`].
    others: usize,
}

impl Count {
    /// The count with one more, if `max` allows it. A quarter is only for [`Priority::First`].
    fn plus_one(self, priority: Priority, max: usize) -> Option<Self> {
        let others = self.others + usize::from(priority == Priority::Others);
        let is_allowed = self.all < max && others <= others_max(max);
        is_allowed.then_some(Self { all: self.all + 1, others })
    }

    fn minus_one(&mut self, priority: Priority) {
        self.all -= 1;
        self.others -= usize::from(priority == Priority::Others);
    }
}

/// The limit of [`Priority::Others`].
fn others_max(max: usize) -> usize {
    max - max / 4
}

/// What may use the last quarter of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Priority {
    First,
    Others,
}

/// One of the numbers, free again once this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    network: IpAddr,
    priority: Priority,
}

/// There is none left: the limit that was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoShare {
    OfNetwork(usize),
    InAll(usize),
}

impl Shares {
    /// Allows `max` at once, and half of them to one network.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default() })
    }

    /// Takes one for a client.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn take(self: &Arc<Self>, client: IpAddr, priority: Priority) -> Result<Share, NoShare> {
        let network = network(client);
        let mut taken = self.lock();
        let limit = |max: usize| if priority == Priority::First { max } else { others_max(max) };
        let all = taken.all.plus_one(priority, self.max).ok_or(NoShare::InAll(limit(self.max)))?;
        let half = self.max.div_ceil(2);
        let own = taken.by_network.get(&network).copied().unwrap_or_default();
        let own = own.plus_one(priority, half).ok_or(NoShare::OfNetwork(limit(half)))?;
        taken.all = all;
        taken.by_network.insert(network, own);
        Ok(Share { shares: Arc::clone(self), network, priority })
    }

    /// Number of those that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.lock().all.all
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.lock();
        taken.all.minus_one(self.priority);
        if let Some(own) = taken.by_network.get_mut(&self.network) {
            own.minus_one(self.priority);
            if own.all == 0 {
                taken.by_network.remove(&self.network);
            }
        }
    }
}

/// The network whose clients are counted together. A host with IPv6 usually has all addresses of a /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & (u128::MAX << 64)).into()),
        four => four,
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
        assert_eq!(take(first, Priority::Others).unwrap_err(), NoShare::OfNetwork(6));
        held.extend((0..2).map(|_| take(first, Priority::First).unwrap()));
        assert_eq!(take(first, Priority::First).unwrap_err(), NoShare::OfNetwork(8));
        held.extend((0..6).map(|_| take(second, Priority::Others).unwrap()));
        let neighbour = take(address("2001:db8::ffff:1"), Priority::Others);
        assert_eq!(neighbour.unwrap_err(), NoShare::InAll(12), "all of those without priority are taken");
        held.extend((0..2).map(|_| take(third, Priority::First).unwrap()));
        assert_eq!(take(third, Priority::First).unwrap_err(), NoShare::InAll(16));
        held.clear();
        assert!(
            shares.taken() == 0 && shares.lock().by_network.is_empty(),
            "nothing is kept of those that are gone"
        );
    }

    #[test]
    fn addresses_of_one_network_count_together() {
        assert_eq!(network(address("2001:db8::1")), network(address("2001:db8::ffff:1")));
        assert_eq!(network(address("::ffff:192.0.2.1")), address("192.0.2.1"));
        assert_ne!(network(address("192.0.2.1")), network(address("192.0.2.2")));
    }

    #[test]
    fn a_limit_of_one_is_one() {
        let shares = Shares::new(1);
        let only = shares.take(address("192.0.2.1"), Priority::Others).unwrap();
        assert_eq!(shares.take(address("192.0.2.2"), Priority::First).unwrap_err(), NoShare::InAll(1));
        drop(only);
    }
}
