//! Limits the memory for answers and changes that clients have not read yet, over all clients.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The limit for all clients together, in bytes.
const UNREAD_MAX: usize = 1 << 30;

/// Counts the unread bytes of all clients. The limit of one client is a quarter of the free memory: it falls
/// as memory fills, so the clients with the most unread bytes exceed it first, and there is always room for
/// others.
#[derive(Default, Debug)]
pub(in crate::front) struct Unread(AtomicUsize);

impl Unread {
    pub(in crate::front) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(in crate::front) fn subtract(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The present limit of unread bytes of one client.
    pub(in crate::front) fn share(&self) -> usize {
        UNREAD_MAX.saturating_sub(self.0.load(Ordering::Relaxed)) / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_shrink_so_that_all_together_stay_within_the_limit() {
        let unread = Unread::default();
        let mut clients = [0; 100];
        for turn in 0..1_000_000 {
            let client = &mut clients[turn % 100];
            if *client + 4_096 <= unread.share() {
                *client += 4_096;
                unread.add(4_096);
            }
        }
        let all: usize = clients.iter().sum();
        assert!(all < UNREAD_MAX && all > UNREAD_MAX / 2, "{all}");
        assert!(unread.share() > UNREAD_MAX / 1_000, "one more has room");
        unread.subtract(all);
        assert_eq!(unread.share(), UNREAD_MAX / 4);
    }
}
