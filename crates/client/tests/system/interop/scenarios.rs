//! Requirements on Lockkeeper and any other client on the same servers.
//!
//! Responsible for the order of events and the assertions; independent of servers, libraries and languages.
//! Scenarios wait for events, not for time, except for the ends of leases.

use std::time::Duration;

use lockkeeper::{AcquireError, BootInstant, Locks, ReleaseError, VerifyError, Wait};

use crate::interop::ours::{Holder, Waiter};
use crate::interop::peer::Peer;

/// Any name: each scenario has separate servers.
pub(crate) const NAME: &str = "orders/42";
/// Used where a test waits for the end of a lease: long enough for a busy machine to reach the next step
/// before it.
const SHORT: Duration = Duration::from_secs(2);
/// Longer than any test runs.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Servers, a Lockkeeper URL for them, and another project's client of them.
pub(crate) trait World {
    type Peer: Peer;

    fn url(&self) -> String;

    fn peer(&self) -> Self::Peer;
}

/// A world whose locks are entries with an expiry, not connections.
pub(crate) trait Leased: World {
    /// Deletes the lock at its servers by hand, as an operator may.
    fn delete(&self, name: &str);
}

async fn connect(world: &impl World) -> Locks {
    Locks::connect(&world.url()).await.unwrap()
}

/// The error of an attempt without waiting.
async fn refusal(locks: &Locks) -> String {
    let error = locks.mutex(NAME).wait(Wait::No).acquire().await.expect_err("the peer holds it");
    assert!(matches!(error, AcquireError::Busy(_)), "{error}");
    error.to_string()
}

/// The peers alone: without this property, the other scenarios would prove nothing about Lockkeeper.
pub(crate) async fn two_peers_exclude_each_other(world: &impl World) {
    let (mut one, mut two) = (world.peer(), world.peer());
    one.takes(NAME, LONG);
    assert_eq!(two.try_acquire(NAME, LONG), None);
    two.starts_waiting(NAME, LONG);
    assert!(one.still_holds(NAME, LONG));
    assert!(one.release(NAME));
    two.gets_it();
    assert!(!one.finds_free(NAME, LONG));
}

pub(crate) async fn a_peers_hold_is_named_in_our_error_and_granted_after_its_release<W: World>(world: &W) {
    let locks = connect(world).await;
    let mut peer = world.peer();
    let holder = peer.takes(NAME, LONG);
    let refusal = refusal(&locks).await;
    let named = W::Peer::in_errors(&holder);
    assert!(refusal.contains(&named), "`{refusal}` does not name {named}");
    let seen = locks.inspect(NAME).await.unwrap();
    let [shown] = &seen.holds[..] else { panic!("{seen:?}") };
    assert!(shown.label.contains(&holder), "{shown:?} is not {holder}");
    let waiter = Waiter::start(&locks, NAME, LONG).await;
    assert!(peer.still_holds(NAME, LONG), "our waiter has taken a lock that is held");
    assert!(peer.release(NAME));
    let guard = waiter.granted().await;
    guard.verify().await.unwrap();
    assert!(!peer.finds_free(NAME, LONG));
}

pub(crate) async fn our_hold_excludes_peers_until_its_release(world: &impl World) {
    let locks = connect(world).await;
    let mut peer = world.peer();
    let guard = locks.mutex(NAME).acquire().await.unwrap();
    assert!(!peer.finds_free(NAME, LONG));
    peer.starts_waiting(NAME, LONG);
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    peer.gets_it();
    refusal(&locks).await;
    assert!(peer.release(NAME));
    let again = locks.mutex(NAME).acquire().await.unwrap();
    again.release().await.unwrap();
}

/// Shared holds together exclude the peer, which may know of no such thing, until the last of them ends.
#[cfg(any(feature = "dynamodb", feature = "etcd", feature = "zookeeper"))]
pub(crate) async fn our_shared_holds_exclude_peers_until_the_last_release(world: &impl World) {
    let (one, two) = (connect(world).await, connect(world).await);
    let mut peer = world.peer();
    let first = one.rw(NAME).read().ttl(SHORT).acquire().await.unwrap();
    let second = two.rw(NAME).read().ttl(SHORT).acquire().await.unwrap();
    assert!(!peer.finds_free(NAME, LONG));
    peer.starts_waiting(NAME, LONG);
    first.release().await.unwrap();
    // The other one is renewed beyond its ttl.
    let renewed = BootInstant::now() + 2 * SHORT;
    while BootInstant::now() < renewed {
        second.verify().await.unwrap();
        tokio::time::sleep(SHORT / 10).await;
    }
    second.release().await.unwrap();
    peer.gets_it();
    let error = one.rw(NAME).read().wait(Wait::No).acquire().await.expect_err("the peer holds it");
    assert!(matches!(error, AcquireError::Busy(_)), "{error}");
    assert!(peer.release(NAME));
    one.rw(NAME).read().acquire().await.unwrap().release().await.unwrap();
}

/// With leases, the crashed peer's lease expires. Where a connection holds the lock, it ends with the peer's
/// process.
pub(crate) async fn a_crashed_peers_lock_is_granted_to_us(world: &impl World) {
    let locks = connect(world).await;
    let mut peer = world.peer();
    peer.takes(NAME, SHORT);
    let waiter = Waiter::start(&locks, NAME, LONG).await;
    peer.crash();
    let guard = waiter.granted().await;
    assert!(!world.peer().finds_free(NAME, LONG));
    guard.release().await.unwrap();
}

/// Everything that renews a hold runs in the library's process, so the lock of a crashed process becomes
/// free.
pub(crate) async fn our_crashed_holders_lock_is_granted_to_a_peer(world: &impl World) {
    let mut peer = world.peer();
    let holder = Holder::start(&world.url(), NAME, SHORT);
    assert!(!peer.finds_free(NAME, LONG));
    peer.starts_waiting(NAME, LONG);
    holder.crash();
    peer.gets_it();
    refusal(&connect(world).await).await;
}

/// A short lease that is renewed: the peer must not acquire the lock between two renewals.
pub(crate) async fn our_renewals_exclude_peers_beyond_the_ttl(world: &impl Leased) {
    let locks = connect(world).await;
    let mut peer = world.peer();
    let guard = locks.mutex(NAME).ttl(SHORT).acquire().await.unwrap();
    let first = guard.valid_until().unwrap().expect("a lease has an end");
    // Without a renewal, the lease would have expired at the server too before the end of this loop,
    // including the margin for clock drift.
    while BootInstant::now() < first + SHORT / 4 {
        assert_eq!(peer.try_acquire(NAME, LONG), None, "they have got a lock that we hold");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    assert!(peer.finds_free(NAME, LONG));
}

/// A peer that slept past its lease wakes up and releases.
pub(crate) async fn a_peers_late_release_does_not_free_our_lock(world: &impl Leased) {
    let locks = connect(world).await;
    let (mut late, mut other) = (world.peer(), world.peer());
    late.takes(NAME, SHORT);
    let guard = Waiter::start(&locks, NAME, LONG).await.granted().await;
    assert!(!late.release(NAME), "it says that it has released what is ours");
    guard.verify().await.unwrap();
    assert!(!other.finds_free(NAME, LONG));
    guard.release().await.unwrap();
}

/// The scenario above with exchanged roles. Also: by the time the peer can acquire the lock, the guard has
/// reported its loss (P5).
pub(crate) async fn our_late_release_does_not_free_a_peers_lock(world: &impl Leased) {
    let locks = connect(world).await;
    let mut peer = world.peer();
    let late = locks.mutex(NAME).ttl(SHORT).no_renew().acquire().await.unwrap();
    peer.starts_waiting(NAME, LONG);
    peer.gets_it();
    assert!(late.loss().is_some(), "our guard says that it holds what is theirs");
    let released = late.release().await;
    assert!(matches!(released, Err(ReleaseError::AlreadyLost(_))), "{released:?}");
    assert!(peer.still_holds(NAME, LONG));
    refusal(&locks).await;
}

/// The lock's key was deleted and then created by the peer: every command of ours must compare the key's
/// value first. An expired lease would not test this, since a guard whose lease has ended sends no commands.
pub(crate) async fn our_commands_for_a_deleted_lock_leave_a_peers_lock_untouched(world: &impl Leased) {
    let locks = connect(world).await;
    let mut peer = world.peer();
    let guard = locks.mutex(NAME).acquire().await.unwrap();
    world.delete(NAME);
    peer.takes(NAME, LONG);
    let found = guard.verify().await;
    assert!(matches!(found, Err(VerifyError::Lost(_))), "{found:?}");
    drop(guard);
    assert!(peer.still_holds(NAME, LONG));
    assert!(peer.release(NAME));

    let guard = locks.mutex(NAME).acquire().await.unwrap();
    world.delete(NAME);
    peer.takes(NAME, LONG);
    let released = guard.release().await;
    assert!(matches!(released, Err(ReleaseError::AlreadyLost(_))), "{released:?}");
    assert!(peer.still_holds(NAME, LONG));
    refusal(&locks).await;
}
