//! Limits on the number of resources in use, such as connections or streams: a limit in total, and a lower
//! one for each holder.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts the resources in use, in total and by holder. A *place* is the right to use one of them.
#[derive(Debug)]
pub struct Places<K: Eq + Hash> {
    most: usize,
    of_holder_most: usize,
    open: Mutex<PlaceCounts<K>>,
}

#[derive(Debug)]
struct PlaceCounts<K> {
    all: usize,
    /// Contains only holders with a place, so it is never larger than `all`.
    by_holder: HashMap<K, usize>,
}

/// One place in use; dropping this value frees the place.
#[derive(Debug)]
pub struct TakenPlace<K: Eq + Hash> {
    places: Arc<Places<K>>,
    holder: Option<K>,
}

/// No place is free. Contains the limit that is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPlace {
    /// The holder has reached the limit of a holder.
    OfHolder(usize),
    /// The total limit is reached.
    InAll(usize),
}

impl<K: Eq + Hash + Clone> Places<K> {
    /// Allows `most` places in total, and half of them to one holder.
    pub fn new(most: usize) -> Arc<Self> {
        Self::with_share(most, most.div_ceil(2))
    }

    /// Allows `most` places in total, and `of_holder_most` to one holder.
    pub fn with_share(most: usize, of_holder_most: usize) -> Arc<Self> {
        let open = Mutex::new(PlaceCounts { all: 0, by_holder: HashMap::new() });
        Arc::new(Self { most, of_holder_most, open })
    }

    /// Takes a place. With `None`, for an unknown holder, only the total limit applies.
    ///
    /// # Errors
    /// No place is free.
    pub fn take(self: &Arc<Self>, holder: Option<K>) -> Result<TakenPlace<K>, NoPlace> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= self.most {
            return Err(NoPlace::InAll(self.most));
        }
        if let Some(holder) = &holder {
            let most = self.of_holder_most;
            match open.by_holder.entry(holder.clone()) {
                Entry::Occupied(count) if *count.get() >= most => return Err(NoPlace::OfHolder(most)),
                Entry::Occupied(mut count) => *count.get_mut() += 1,
                Entry::Vacant(count) => drop(count.insert(1)),
            }
        }
        open.all += 1;
        Ok(TakenPlace { places: self.clone(), holder })
    }

    /// The number of places in use.
    pub fn taken(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).all
    }
}

impl<K: Eq + Hash> Drop for TakenPlace<K> {
    fn drop(&mut self) {
        let mut open = self.places.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all -= 1;
        if let Some(holder) = self.holder.take()
            && let Entry::Occupied(mut count) = open.by_holder.entry(holder)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// The network whose connections are counted together. A host with IPv6 usually has all addresses of a /64.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & (u128::MAX << 64)).into()),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_gets_half_of_the_places_and_all_holders_get_all() {
        let places = Places::new(4);
        let first = places.take(Some("a")).unwrap();
        let _second = places.take(Some("a")).unwrap();
        assert_eq!(places.take(Some("a")).unwrap_err(), NoPlace::OfHolder(2));
        let _others = (places.take(Some("b")).unwrap(), places.take(None).unwrap());
        assert_eq!(places.take(Some("c")).unwrap_err(), NoPlace::InAll(4));
        drop(first);
        let third = places.take(None).unwrap();
        assert_eq!(places.take(Some("a")).unwrap_err(), NoPlace::InAll(4));
        drop(third);
        assert!(places.take(Some("a")).is_ok());
    }

    #[test]
    fn addresses_of_one_network_count_together_and_nothing_is_kept_of_those_that_are_gone() {
        let address = |text: &str| network(text.parse().unwrap());
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1"));
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
        assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
        let places = Places::new(2);
        drop(places.take(Some(address("2001:db8::1"))).unwrap());
        assert!(places.open.lock().unwrap().by_holder.is_empty());
    }
}
