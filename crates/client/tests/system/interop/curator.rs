//! Curator's `InterProcessMutex` with `zookeeper://…?layout=plain`, and its `InterProcessReadWriteLock` with
//! `recipe=readwrite`.

use lockkeeper_rig::ZooKeeper;

use crate::interop::prove;
use crate::interop::scenarios::World;
use crate::interop::script::Script;

struct OneServer {
    server: ZooKeeper,
    recipe: &'static str,
}

impl OneServer {
    fn start(recipe: &'static str) -> Self {
        Self { server: ZooKeeper::start(), recipe }
    }
}

impl World for OneServer {
    type Peer = Script;

    fn url(&self) -> String {
        format!("{}?layout=plain&recipe={}", self.server.url(), self.recipe)
    }

    fn peer(&self) -> Script {
        Script::curator(self.server.port(), self.recipe)
    }
}

mod mutex {
    use super::*;

    prove! {
        OneServer::start("mutex") =>
        two_peers_exclude_each_other,
        a_peers_hold_is_named_in_our_error_and_granted_after_its_release,
        our_hold_excludes_peers_until_its_release,
        a_crashed_peers_lock_is_granted_to_us,
        our_crashed_holders_lock_is_granted_to_a_peer,
    }
}

mod readwrite {
    use super::*;

    prove! {
        OneServer::start("readwrite") =>
        a_peers_hold_is_named_in_our_error_and_granted_after_its_release,
        our_hold_excludes_peers_until_its_release,
        our_crashed_holders_lock_is_granted_to_a_peer,
    }
}
