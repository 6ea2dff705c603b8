//! etcd's own client in Go, `concurrency.Mutex`, with `etcd://…?layout=plain`.

use lockkeeper_rig::Etcd;

use crate::interop::prove;
use crate::interop::scenarios::{Leased, World};
use crate::interop::script::Script;

struct OneMember(Etcd);

impl World for OneMember {
    type Peer = Script;

    fn url(&self) -> String {
        format!("{}?layout=plain", self.0.url())
    }

    fn peer(&self) -> Script {
        Script::concurrency_mutex(self.0.port())
    }
}

impl Leased for OneMember {
    fn delete(&self, name: &str) {
        self.0.cli(&["del", "--prefix", &format!("{name}/")]);
    }
}

prove! {
    OneMember(Etcd::start()) =>
    two_peers_exclude_each_other,
    a_peers_hold_is_named_in_our_error_and_granted_after_its_release,
    our_hold_excludes_peers_until_its_release,
    our_shared_holds_exclude_peers_until_the_last_release,
    a_crashed_peers_lock_is_granted_to_us,
    our_crashed_holders_lock_is_granted_to_a_peer,
    our_renewals_exclude_peers_beyond_the_ttl,
    our_late_release_does_not_free_a_peers_lock,
    our_commands_for_a_deleted_lock_leave_a_peers_lock_untouched,
}
