//! The limit of connections whose other side has not shown a certificate yet, on a port with TLS: a host that opens
//! connections and says nothing must not keep those out that have one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts the connections without a certificate, in all and by source address.
#[derive(Debug)]
pub(crate) struct Unauthenticated {
    most: usize,
    most_of_source: usize,
    open: Mutex<PlaceCounts>,
}

#[derive(Default, Debug)]
struct PlaceCounts {
    all: usize,
    /// Has only sources with a connection, so it is no larger than `all`.
    by_source: HashMap<IpAddr, usize>,
}

/// A connection's place; dropped when a certificate was accepted, or with the connection.
#[derive(Debug)]
pub(crate) struct UnauthenticatedPlace {
    limit: Arc<Unauthenticated>,
    source: IpAddr,
}

impl Unauthenticated {
    /// Allows `most` connections at once, and half of them from one source.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, most_of_source: most.div_ceil(2), open: Mutex::default() })
    }

    /// A place for a new connection; `None` if there is none for this address.
    pub(crate) fn place(self: &Arc<Self>, address: IpAddr) -> Option<UnauthenticatedPlace> {
        let source = source(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= self.most {
            return None;
        }
        let count = open.by_source.entry(source).or_default();
        if *count >= self.most_of_source {
            return None;
        }
        *count += 1;
        open.all += 1;
        Some(UnauthenticatedPlace { limit: self.clone(), source })
    }
}

impl Drop for UnauthenticatedPlace {
    fn drop(&mut self) {
        let mut open = self.limit.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all -= 1;
        if let Entry::Occupied(mut count) = open.by_source.entry(self.source) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// The network whose connections are counted together. A host with IPv6 usually has all addresses of a /64.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & (u128::MAX << 64)).into()),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_gets_half_of_the_places_and_all_sources_get_all() {
        let limit = Unauthenticated::new(4);
        let [a, b, c]: [IpAddr; 3] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|it| it.parse().unwrap());
        let first = limit.place(a).unwrap();
        let _second = limit.place(a).unwrap();
        assert!(limit.place(a).is_none());
        let _others = (limit.place(b).unwrap(), limit.place(b).unwrap());
        assert!(limit.place(c).is_none());
        drop(first);
        let third = limit.place(c).unwrap();
        assert!(limit.place(a).is_none(), "all places are taken");
        drop(third);
        assert!(limit.place(a).is_some());
    }

    #[test]
    fn addresses_of_one_network_count_together_and_nothing_is_kept_of_closed_connections() {
        let limit = Unauthenticated::new(2);
        let places = ["2001:db8::1", "2001:db8::ffff:1", "::ffff:192.0.2.1"]
            .map(|it| limit.place(it.parse().unwrap()));
        assert!(places[0].is_some() && places[1].is_none() && places[2].is_some());
        assert!(
            limit.place("192.0.2.1".parse().unwrap()).is_none(),
            "it is the same address as the mapped one"
        );
        drop(places);
        assert!(limit.open.lock().unwrap().by_source.is_empty());
    }
}
