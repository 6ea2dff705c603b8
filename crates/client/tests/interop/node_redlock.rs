//! node-redlock with `redlock://` on five servers, and with `redis://` on one.

use lockkeeper_rig::Redis;

use crate::prove;
use crate::scenarios::{Leased, World};
use crate::script::Script;

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
        two_of_them_exclude_each_other,
        while_they_hold_we_are_told_who_and_get_it_after_their_release,
        while_we_hold_they_fail_and_get_it_after_our_release,
        when_they_crash_we_get_it,
        when_we_crash_they_get_it,
        our_renewals_keep_them_out,
        their_late_release_does_not_free_ours,
        our_late_release_does_not_free_theirs,
        nothing_we_send_for_a_deleted_lock_touches_theirs,
    }

    /// With two of five servers down, both clients still need the same majority.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn without_a_minority_they_still_exclude_each_other() {
        use std::time::Duration;

        use crate::peer::Peer;

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
        two_of_them_exclude_each_other,
        while_they_hold_we_are_told_who_and_get_it_after_their_release,
        while_we_hold_they_fail_and_get_it_after_our_release,
        when_they_crash_we_get_it,
        when_we_crash_they_get_it,
        our_renewals_keep_them_out,
        their_late_release_does_not_free_ours,
        our_late_release_does_not_free_theirs,
        nothing_we_send_for_a_deleted_lock_touches_theirs,
    }
}
