//! The driver on real sockets: against a stub of the service, and against peers that are no lock service.

mod nodes;
mod runtimes;
mod searching;
mod stand_in;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::{AcquireError, ReleaseError};
use crate::lock::Wait;
use crate::locks::Locks;
use lockkeeper_backend::{BackendErrorKind, BootInstant, ConnectError, LossCause};
use stand_in::StandIn;

const SECOND: Duration = Duration::from_secs(1);

/// A listener that runs `serve` on each connection.
fn listener(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// An address without a listener.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn until(what: &str, mut probe: impl FnMut() -> bool) {
    let deadline = Instant::now() + 30 * SECOND;
    while !probe() {
        assert!(Instant::now() < deadline, "waited for 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn refused(url: &str) -> String {
    match Locks::connect(url).await {
        Err(ConnectError::Backend(error)) => {
            assert_eq!(error.kind, BackendErrorKind::Unreachable);
            error.message
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("connected to {url}"),
    }
}

#[tokio::test]
async fn the_error_for_an_absent_service_names_addresses_cause_and_remedy() {
    let (one, two) = (nobody(), nobody());
    let message = refused(&format!("lockkeeper://{one},{two}")).await;
    for part in [&one.to_string(), &two.to_string(), "refused", "lockkeeper serve"] {
        assert!(message.contains(part), "`{part}` is missing: {message}");
    }
}

#[tokio::test]
async fn a_peer_that_is_no_lock_service_is_named_in_the_error() {
    let talks = listener(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi");
        let _ = stream.read(&mut [0; 1024]);
    });
    let message = refused(&format!("lockkeeper://{talks}")).await;
    assert!(message.contains(&talks.to_string()), "{message}");
    let closes = listener(drop);
    let message = refused(&format!("lockkeeper://{closes}")).await;
    assert!(message.contains(&closes.to_string()), "{message}");
}

#[tokio::test]
async fn a_node_that_accepts_but_never_answers_is_skipped() {
    let silent = listener(|mut stream| while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {});
    let reads_nothing = listener(|stream| {
        let _open = stream;
        std::thread::park();
    });
    let [silent_url, other_url] = [silent, reads_nothing].map(|address| format!("lockkeeper://{address}"));
    for message in <[String; 2]>::from(tokio::join!(refused(&silent_url), refused(&other_url))) {
        assert!(message.contains("no answer within"), "{message}");
    }
    // With another node that answers, connecting succeeds, and the stream uses that node.
    let service = StandIn::start();
    let locks = Locks::connect(&format!("lockkeeper://{silent},{reads_nothing},{}", service.address()))
        .await
        .unwrap();
    let held = locks.mutex("a").ttl(3 * SECOND).acquire().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_lock_is_granted_to_the_next_waiter() {
    let service = StandIn::start();
    let (one, two) = (service.client("one").await, service.client("two").await);
    let held = one.mutex("a").acquire().await.unwrap();
    assert!(two.mutex("a").try_acquire().await.unwrap().is_none());
    let token = held.token_hint();
    let queued = Arc::new(AtomicUsize::new(0));
    let waiting = tokio::spawn({
        let queued = queued.clone();
        let lock = two.mutex("a").on_queued(move |_| queued.store(1, Ordering::SeqCst));
        async move { lock.acquire().await }
    });
    until("it queues", || queued.load(Ordering::SeqCst) > 0).await;
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token_hint() > token);
    next.verify().await.unwrap();
    let report = one.shutdown(5 * SECOND).await;
    assert_eq!((report.closed, report.left), (1, 0));
}

/// All streams are cut repeatedly, without a message; no call may fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_streams_lose_no_lock_and_no_place_in_the_queue() {
    let service = StandIn::start();
    let mut tasks = Vec::new();
    let held = Arc::new(AtomicUsize::new(0));
    for client in 0..4 {
        let locks = service.client(&format!("client {client}")).await;
        for task in 0..4 {
            let (locks, held) = (locks.clone(), held.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..15 {
                    let lock = locks.mutex(format!("lock {}", (task + round) % 3));
                    lock.acquire().await.unwrap().release().await.unwrap();
                    held.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
    }
    let mut cuts = 0;
    while tasks.iter().any(|task| !task.is_finished()) {
        let before = held.load(Ordering::SeqCst);
        until("some are held between two cuts", || {
            held.load(Ordering::SeqCst) > before + 4 || tasks.iter().all(tokio::task::JoinHandle::is_finished)
        })
        .await;
        cuts += service.cut_streams();
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(held.load(Ordering::SeqCst), 4 * 4 * 15);
    assert!(cuts > 4, "only {cuts} streams were cut");
    until("nothing is left", || service.in_use() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_answers_a_hold_is_lost_and_its_release_is_ambiguous() {
    let service = StandIn::start();
    let locks = service.client("one").await;
    let held = locks.mutex("a").ttl(SECOND).acquire().await.unwrap();
    let other = locks.mutex("b").acquire().await.unwrap();
    service.say_nothing(true);
    let lost = held.lost();
    until("it is lost", || lost.is_cancelled()).await;
    assert_eq!(held.loss(), Some(LossCause::Expired));
    let silent = other.release().await;
    assert!(matches!(silent, Err(ReleaseError::Ambiguous { why: Some(_) })), "P12: {silent:?}");
    let late = locks.mutex("c").ttl(SECOND).wait(Wait::For(2 * SECOND)).acquire().await;
    assert!(matches!(late, Err(AcquireError::Unreachable { .. } | AcquireError::Ambiguous { .. })));
    service.say_nothing(false);
    locks.mutex("b").acquire().await.unwrap().release().await.unwrap();
}

/// A blocked runtime keeps its locks: a thread of the library renews them.
#[test]
fn a_blocked_runtime_loses_no_lock() {
    let service = StandIn::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = service.client("one").await;
        let held = locks.mutex("a").ttl(SECOND).acquire().await.unwrap();
        std::thread::sleep(3 * SECOND);
        assert_eq!(held.loss(), None);
        held.verify().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_linger_a_hold_is_lost_within_linger_of_the_end_of_the_stream() {
    let service = StandIn::start();
    let one = service.client("one").await;
    let held = one.mutex("a").linger(SECOND).acquire().await.unwrap();
    let before = held.valid_until().unwrap().unwrap();
    service.say_nothing(true);
    assert_eq!(service.cut_streams(), 1);
    let lost = held.lost();
    until("it is lost", || lost.is_cancelled()).await;
    assert!(BootInstant::now() < before, "long before its ttl of 30 s was over");
    service.say_nothing(false);
    // A stream that is replaced within `linger` causes no loss.
    let held = one.mutex("b").linger(SECOND).acquire().await.unwrap();
    assert_eq!(service.cut_streams(), 1);
    until("its time is whole again", || held.check(20 * SECOND).is_ok()).await;
    assert_eq!(held.loss(), None);
}
