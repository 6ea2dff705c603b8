//! redis-py's `Lock` with `redis://`, and its single-server locks with `redlock://`.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::Redis;

use crate::interop::ours::Waiter;
use crate::interop::peer::Peer;
use crate::interop::prove;
use crate::interop::scenarios::{Leased, World};
use crate::interop::script::Script;

/// Longer than any test runs.
const TTL: Duration = Duration::from_secs(600);

/// One server, used by both clients.
struct OneServer(Redis);

impl World for OneServer {
    type Peer = Script;

    fn url(&self) -> String {
        self.0.url()
    }

    fn peer(&self) -> Script {
        Script::redis_py(self.0.port())
    }
}

impl Leased for OneServer {
    fn delete(&self, name: &str) {
        assert_eq!(self.0.cli(&["DEL", name]).trim(), "1");
    }
}

prove! {
    OneServer(Redis::start()) =>
    two_peers_exclude_each_other,
    a_peers_hold_is_named_in_our_error_and_granted_after_its_release,
    our_hold_excludes_peers_until_its_release,
    a_crashed_peers_lock_is_granted_to_us,
    our_crashed_holders_lock_is_granted_to_a_peer,
    our_renewals_exclude_peers_beyond_the_ttl,
    a_peers_late_release_does_not_free_our_lock,
    our_late_release_does_not_free_a_peers_lock,
    our_commands_for_a_deleted_lock_leave_a_peers_lock_untouched,
}

/// The default of `client.lock(name)`: a key without an expiry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_lock_without_expiry_blocks_until_its_release() {
    let world = OneServer(Redis::start());
    let locks = Locks::connect(&world.url()).await.unwrap();
    let mut peer = world.peer();
    peer.takes("x", Duration::ZERO);
    assert_eq!(world.0.cli(&["PTTL", "x"]).trim(), "-1");
    assert!(locks.mutex("x").try_acquire().await.unwrap().is_none());
    let seen = locks.inspect("x").await.unwrap();
    assert_eq!(seen.holds.len(), 1, "{seen:?}");
    let waiter = Waiter::start(&locks, "x", TTL).await;
    assert!(peer.release("x"));
    let guard = waiter.granted().await;
    assert_ne!(world.0.cli(&["PTTL", "x"]).trim(), "-1", "ours has an end");
    guard.release().await.unwrap();
    assert!(peer.finds_free("x", TTL));
}

/// Single-server locks of redis-py against one `redlock://` lock: they conflict with it once they are held on
/// three of the five servers.
#[cfg(feature = "redlock")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_server_locks_conflict_from_a_majority_on_and_are_never_deleted() {
    let servers: Vec<Redis> = (0..5).map(|_| Redis::start()).collect();
    let mut peers: Vec<Script> = servers.iter().map(|server| Script::redis_py(server.port())).collect();
    let locks = Locks::connect(&crate::interop::node_redlock::redlock_url(&servers)).await.unwrap();

    for peer in &mut peers[..3] {
        peer.takes("x", TTL);
    }
    assert!(locks.mutex("x").try_acquire().await.unwrap().is_none());
    let waiter = Waiter::start(&locks, "x", TTL).await;
    assert!(peers[2].release("x"));
    let guard = waiter.granted().await;
    for (server, peer) in peers.iter_mut().enumerate() {
        // The peers still hold the first two servers. Lockkeeper holds the other three, which are a majority.
        if server < 2 {
            assert!(peer.still_holds("x", TTL), "server {server}");
        } else {
            assert!(!peer.finds_free("x", TTL), "server {server}");
        }
    }
    guard.release().await.unwrap();
    assert!(peers[0].release("x") && peers[1].release("x"), "our release has freed theirs");
}
