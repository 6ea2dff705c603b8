//! kazoo's `Lock` with `zookeeper://…?layout=plain`. kazoo is told to look for our nodes, which are named as
//! Curator's.

use lockkeeper_rig::ZooKeeper;

use crate::interop::prove;
use crate::interop::scenarios::World;
use crate::interop::script::Script;

struct OneServer(ZooKeeper);

impl World for OneServer {
    type Peer = Script;

    fn url(&self) -> String {
        format!("{}?layout=plain", self.0.url())
    }

    fn peer(&self) -> Script {
        Script::kazoo(self.0.port())
    }
}

prove! {
    OneServer(ZooKeeper::start()) =>
    two_peers_exclude_each_other,
    a_peers_hold_is_named_in_our_error_and_granted_after_its_release,
    our_hold_excludes_peers_until_its_release,
    a_crashed_peers_lock_is_granted_to_us,
    our_crashed_holders_lock_is_granted_to_a_peer,
}
