//! node-redlock with `redlock://` on five servers, and with `redis://` on one.

use lockkeeper_rig::Redis;

use crate::interop::prove;
use crate::interop::scenarios::{Leased, World};
use crate::interop::script::Script;

/// Independent servers, of which both clients need a majority; or a single one, which is its own majority.
struct Servers(Vec<Redis>);

impl Servers {
    fn start(count: usize) -> Self {
        Self((0..count).map(|_| Redis::start()).collect())
    }
}

impl World for Servers {
    type Peer = Script;

    fn url(&self) -> String {
        match &self.0[..] {
            [one] => one.url(),
            several => redlock_url(several),
        }
    }

    fn peer(&self) -> Script {
        Script::node_redlock(&self.0.iter().map(Redis::port).collect::<Vec<_>>())
    }
}

impl Leased for Servers {
    fn delete(&self, name: &str) {
        for server in &self.0 {
            server.cli(&["DEL", name]);
        }
    }
}

/// The `redlock://` URL of these servers.
pub(crate) fn redlock_url(servers: &[Redis]) -> String {
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redlock://{}", hosts.join(","))
}

mod on_five_servers {
    use super::*;

    prove! {
        Servers::start(5) =>
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

    /// With two of five servers down, both clients need all three others, so they still exclude each other.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_clients_exclude_each_other_with_a_minority_of_servers_down() {
        use std::time::Duration;

        use crate::interop::peer::Peer;

        const TTL: Duration = Duration::from_secs(600);
        let servers = Servers::start(5);
        let locks = lockkeeper::Locks::connect(&servers.url()).await.unwrap();
        let mut peer = servers.peer();
        for server in &servers.0[..2] {
            server.kill();
        }
        let guard = locks.mutex("x").acquire().await.unwrap();
        assert!(!peer.finds_free("x", TTL));
        guard.release().await.unwrap();
        peer.takes("x", TTL);
        assert!(locks.mutex("x").try_acquire().await.unwrap().is_none());
        assert!(peer.release("x"));
        locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
    }
}

mod on_one_server {
    use super::*;

    prove! {
        Servers::start(1) =>
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
}
