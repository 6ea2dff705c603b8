//! kazoo's `Lock`, `ReadLock` and `WriteLock`, as they are without settings, with
//! `zookeeper://…?layout=plain&recipe=kazoo`.

use lockkeeper::{Locks, Wait};
use lockkeeper_contract::{start_waiting, until_waiting};
use lockkeeper_rig::ZooKeeper;

use crate::interop::peer::Peer;
use crate::interop::prove;
use crate::interop::scenarios::{LONG, NAME, World};
use crate::interop::script::Script;

struct OneServer {
    server: ZooKeeper,
    /// kazoo's class of the peers' locks.
    kind: &'static str,
}

impl OneServer {
    fn start(kind: &'static str) -> Self {
        Self { server: ZooKeeper::start(), kind }
    }

    fn peer_of(&self, kind: &str) -> Script {
        Script::kazoo(self.server.port(), kind)
    }
}

impl World for OneServer {
    type Peer = Script;

    fn url(&self) -> String {
        format!("{}?layout=plain&recipe=kazoo", self.server.url())
    }

    fn peer(&self) -> Script {
        self.peer_of(self.kind)
    }
}

mod lock {
    use super::*;

    prove! {
        OneServer::start("Lock") =>
        two_peers_exclude_each_other,
        a_peers_hold_is_named_in_our_error_and_granted_after_its_release,
        our_hold_excludes_peers_until_its_release,
        a_crashed_peers_lock_is_granted_to_us,
        our_crashed_holders_lock_is_granted_to_a_peer,
    }
}

mod write_lock {
    use super::*;

    prove! {
        OneServer::start("WriteLock") =>
        a_peers_hold_is_named_in_our_error_and_granted_after_its_release,
        our_hold_excludes_peers_until_its_release,
        our_shared_holds_exclude_peers_until_the_last_release,
    }
}

mod read_lock {
    use super::*;

    prove! {
        OneServer::start("ReadLock") =>
        our_hold_excludes_peers_until_its_release,
        a_crashed_peers_lock_is_granted_to_us,
    }
}

/// One queue for both, in the order of their requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_both_are_served_in_order() {
    let world = OneServer::start("Lock");
    let locks = Locks::connect(&world.url()).await.unwrap();
    let (mut first, mut third) = (world.peer(), world.peer());
    let held = locks.mutex(NAME).acquire().await.unwrap();
    first.starts_waiting(NAME, LONG);
    until_waiting(&locks, NAME, 1).await;
    let second = start_waiting(locks.mutex(NAME)).await;
    third.starts_waiting(NAME, LONG);
    until_waiting(&locks, NAME, 3).await;
    held.release().await.unwrap();
    first.gets_it();
    assert!(!second.is_finished());
    assert!(first.release(NAME));
    let second = second.await.unwrap().unwrap();
    until_waiting(&locks, NAME, 1).await;
    second.verify().await.unwrap();
    second.release().await.unwrap();
    third.gets_it();
    assert!(third.still_holds(NAME, LONG));
}

/// Readers of both hold together. A writer waits for all of them, and later readers wait for the writer,
/// whoever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_both_hold_together_and_wait_for_an_earlier_writer() {
    let world = OneServer::start("ReadLock");
    let locks = Locks::connect(&world.url()).await.unwrap();
    let (mut reader, mut writer) = (world.peer(), world.peer_of("WriteLock"));

    let ours = locks.rw(NAME).read().acquire().await.unwrap();
    reader.takes(NAME, LONG);
    assert_eq!(locks.inspect(NAME).await.unwrap().hold_count, 2);
    writer.starts_waiting(NAME, LONG);
    until_waiting(&locks, NAME, 1).await;
    let later = start_waiting(locks.rw(NAME).read()).await;
    ours.release().await.unwrap();
    assert!(reader.release(NAME));
    writer.gets_it();
    assert!(!later.is_finished());
    assert!(writer.release(NAME));
    let later = later.await.unwrap().unwrap();

    // The same with a writer of ours.
    reader.takes(NAME, LONG);
    assert!(locks.rw(NAME).write().wait(Wait::No).acquire().await.is_err());
    let ours = start_waiting(locks.rw(NAME).write()).await;
    later.release().await.unwrap();
    let mut behind = world.peer();
    behind.starts_waiting(NAME, LONG);
    until_waiting(&locks, NAME, 2).await;
    assert!(reader.still_holds(NAME, LONG) && !ours.is_finished());
    assert!(reader.release(NAME));
    let ours = ours.await.unwrap().unwrap();
    until_waiting(&locks, NAME, 1).await;
    ours.release().await.unwrap();
    behind.gets_it();
}
