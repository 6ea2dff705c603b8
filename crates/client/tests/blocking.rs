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
    assert_eq!((changed.name.as_str(), changed.holder_count), ("a/b", 1));
    assert_eq!(locks.sessions().unwrap().len(), 1);
    held.release().unwrap();
    let invalid = locks.watch(Some("a//b")).unwrap_err();
    assert_eq!(invalid.kind, BackendErrorKind::Refused, "{invalid}");
    service.stop();
}
