//! The blocking API: where it may be called, and what it offers.

use std::sync::mpsc;
use std::time::Duration;

use lockkeeper::blocking::Locks;
use lockkeeper::{BackendErrorKind, HoldError, Wait, WatchEvent};
use lockkeeper_server::{Running, ServerOptions};

/// Starts a service of one node in this process.
fn serve(data: &std::path::Path) -> Running {
    let options = ServerOptions { listen: "127.0.0.1:0".to_owned(), ..ServerOptions::new(data.join("data")) };
    let (ready, started) = mpsc::channel();
    std::thread::spawn(move || lockkeeper_server::run(options, |running| ready.send(running).unwrap()));
    started.recv().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_works_in_spawn_blocking_and_its_clients_may_be_dropped_anywhere() {
    let (locks, guard) = tokio::task::spawn_blocking(|| {
        let locks = Locks::connect("memory:").unwrap();
        locks.mutex("a").acquire().unwrap().release().unwrap();
        let guard = locks.mutex("a").acquire().unwrap();
        (locks, guard)
    })
    .await
    .unwrap();
    // Dropped in an async task.
    drop(guard);
    drop(locks);
}

#[tokio::test]
#[should_panic(expected = "Cannot start a runtime from within a runtime")]
async fn it_refuses_to_block_a_thread_that_drives_tasks() {
    drop(Locks::connect("memory:"));
}

#[test]
fn options_have_the_names_of_the_async_ones() {
    let locks = Locks::connect("memory:").unwrap();
    let second = Duration::from_secs(1);
    let lock = locks.mutex("a").ttl(5 * second).wait(Wait::No).max_hold(60 * second).meta("why", "test");
    let held = lock.acquire().unwrap();
    assert!(lock.try_acquire().unwrap().is_none());
    let busy = lock.run(|_| Ok::<_, HoldError>(())).unwrap_err();
    assert!(matches!(busy, HoldError::NotAcquired(_)), "{busy}");
    held.release().unwrap();
    assert_eq!(lock.run(|_| Ok::<_, HoldError>(7)).unwrap(), 7);
}

#[test]
fn sessions_are_listed_and_changes_watched() {
    let data = tempfile::tempdir().unwrap();
    let service = serve(data.path());
    let locks = Locks::connect(&format!("lockkeeper://{}", service.address())).unwrap();
    let mut watch = locks.watch(Some("a")).unwrap();
    assert_eq!(watch.next().unwrap().unwrap(), WatchEvent::Synced);
    let held = locks.mutex("a/b").acquire().unwrap();
    let Some(Ok(WatchEvent::Changed(changed))) = watch.next() else { panic!("a change") };
    assert_eq!((changed.name.as_str(), changed.hold_count), ("a/b", 1));
    assert_eq!(locks.sessions().unwrap().len(), 1);
    held.release().unwrap();
    let invalid = locks.watch(Some("a//b")).unwrap_err();
    assert_eq!(invalid.kind, BackendErrorKind::Refused, "{invalid}");
    service.stop();
}

#[test]
fn recipes_are_those_of_the_async_api() {
    let locks = Locks::connect("memory:").unwrap();
    let election = locks.election("boss");
    let mut observed = election.observe();
    assert_eq!(observed.next().unwrap().unwrap(), None);
    let leads = election.campaign("me").unwrap();
    assert_eq!(observed.next().unwrap().unwrap().unwrap().value, b"me");
    leads.release().unwrap();
    assert_eq!(election.leader().unwrap(), None);

    let rate = locks.rate("mail", 1, Duration::from_secs(3600));
    rate.acquire().unwrap().release().unwrap();
    assert!(rate.try_acquire().unwrap().is_none());
    let striped = locks.striped("cart", 8);
    let held = striped.for_key("ana").acquire().unwrap();
    assert!(locks.mutex(format!("cart/{}", striped.stripe("ana"))).try_acquire().unwrap().is_none());
    held.release().unwrap();

    let mut member = locks.partitions("shards", 4).join().unwrap();
    let mut owned = Vec::new();
    while owned.len() < 4 {
        owned.extend(member.next_within(Duration::from_secs(30)).unwrap());
    }
    assert!(member.next_within(Duration::from_millis(1)).unwrap().is_none());
    assert_eq!(member.owned(), 4);
    assert!(owned.iter().all(|partition| !partition.is_leaving()));
    member.leave().unwrap();
    for partition in owned {
        assert!(partition.is_leaving());
        partition.release().unwrap();
    }
}
