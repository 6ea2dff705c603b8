//! Features that only Lockkeeper's own service has, against a real service in this process.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use lockkeeper::{
    AcquireError, BackendErrorKind, BreakOrder, Lock, LockName, Locks, TokenStatus, Watch, WatchEvent,
};
use lockkeeper_server::{Running, ServerOptions};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

const SECOND: Duration = Duration::from_secs(1);

/// A service of one node; stops when dropped.
struct Service {
    running: Running,
    _data: TempDir,
}

impl Service {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let options = ServerOptions {
            listen: "127.0.0.1:0".to_owned(),
            ..ServerOptions::new(data.path().join("data"))
        };
        let (ready, started) = mpsc::channel();
        std::thread::spawn(move || lockkeeper_server::run(options, |running| ready.send(running).unwrap()));
        Self { running: started.recv().unwrap(), _data: data }
    }

    async fn client(&self, label: &str) -> Locks {
        Locks::connect_as(&format!("lockkeeper://{}", self.running.address()), label).await.unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.running.stop();
    }
}

/// A proxy that counts connections. Each stream of a client has its own connection.
struct ConnectionCounter {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl ConnectionCounter {
    async fn start(service: &Service) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let counter = Self { address: listener.local_addr().unwrap(), accepted: Arc::default() };
        let (accepted, to) = (counter.accepted.clone(), service.running.address());
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut to = TcpStream::connect(to).await.unwrap();
                    // Either end may close or reset the connection.
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                });
            }
        });
        counter
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn name(text: &str) -> LockName {
    text.parse().unwrap()
}

async fn next(watch: &mut Watch) -> WatchEvent {
    let event = tokio::time::timeout(20 * SECOND, watch.next()).await.expect("an event within 20 s");
    event.expect("the watch goes on").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_sessions_locks_tokens_and_the_node() {
    let service = Service::start();
    let (one, two) = (service.client("one").await, service.client("two").await);
    let held = one.mutex("a/b").ttl(12 * SECOND).acquire().await.unwrap();
    let other = two.mutex("c").acquire().await.unwrap();
    let sessions = two.sessions().await.unwrap();
    let [first, second] = &sessions[..] else { panic!("{sessions:?}") };
    assert_eq!((first.label.as_str(), first.ttl, first.requests), ("one", 12 * SECOND, 1));
    assert!(first.attached && first.left <= first.ttl && first.id < second.id);
    let listed = two.list(Some("a")).await.unwrap();
    assert_eq!(listed.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["a/b"]);
    let token = held.token_hint().unwrap();
    assert_eq!(two.check_token("a/b", token).await.unwrap(), TokenStatus::Current);
    let worth = two.check_token("a/b", other.token_hint().unwrap()).await.unwrap();
    assert_eq!(worth, TokenStatus::NotCurrent { live: vec![token] });
    let status = one.status().await.unwrap();
    assert!(status.role == lockkeeper::NodeRole::Leader && status.leader == Some(status.node));
    assert_eq!((status.sessions, status.requests, status.streams), (2, 2, 2));
    assert_eq!(status.last_token, other.token_hint().unwrap().get());
}

/// 1500 locks: more than one page of the list, which has 1000.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_are_complete() {
    let service = Service::start();
    let locks = service.client("one").await;
    let lock = |number: u32| locks.mutex(format!("many/{number:05}"));
    let held: Vec<_> = {
        let tasks: Vec<_> = (0..1500)
            .map(|number| {
                tokio::spawn({
                    let lock = lock(number);
                    async move { lock.acquire().await }
                })
            })
            .collect();
        let mut held = Vec::new();
        for task in tasks {
            held.push(task.await.unwrap().unwrap());
        }
        held
    };
    let listed = locks.list(Some("many")).await.unwrap();
    assert_eq!(listed.len(), held.len());
    assert!(listed.windows(2).all(|pair| pair[0].name < pair[1].name));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_sends_the_state_and_then_every_change() {
    let service = Service::start();
    let locks = service.client("one").await;
    let held = locks.mutex("w/a").acquire().await.unwrap();
    let mut watch = locks.watch(Some("w")).unwrap();
    let WatchEvent::State(state) = next(&mut watch).await else { panic!("first the state") };
    assert_eq!((state.name.as_str(), state.holds.len()), ("w/a", 1));
    assert_eq!(next(&mut watch).await, WatchEvent::Synced);
    held.release().await.unwrap();
    let WatchEvent::Changed(free) = next(&mut watch).await else { panic!("a vacancy is an event") };
    assert!(free.name.as_str() == "w/a" && free.holds.is_empty());
    let _elsewhere = locks.mutex("other").acquire().await.unwrap();
    let _again = locks.mutex("w/b").acquire().await.unwrap();
    let WatchEvent::Changed(changed) = next(&mut watch).await else { panic!("a change") };
    assert_eq!(changed.name.as_str(), "w/b", "what lies elsewhere is not told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_limit_overrides_the_limits_of_requests() {
    let service = Service::start();
    let locks = service.client("one").await;
    locks.set_limit("pool", Some(2)).await.unwrap();
    let one = locks.semaphore("pool", 7).acquire().await.unwrap();
    assert_eq!(one.permits()[0].limit, 2);
    let _two = locks.semaphore_in_force("pool").acquire().await.unwrap();
    assert!(locks.semaphore("pool", 7).try_acquire().await.unwrap().is_none());
    let refused = locks.set_limit("pool", Some(0)).await.unwrap_err();
    assert_eq!(refused.kind, BackendErrorKind::Refused, "{refused}");
    locks.set_limit("other", None).await.unwrap();
    let none = locks.semaphore_in_force("other").acquire().await;
    assert!(matches!(none, Err(AcquireError::Backend(error)) if error.kind == BackendErrorKind::Refused));
}

#[tokio::test]
async fn other_backends_return_unsupported() {
    let locks = Locks::connect("memory:").await.unwrap();
    let error = locks.status().await.unwrap_err();
    assert!(error.kind == BackendErrorKind::Unsupported && error.message.contains("`memory`"), "{error}");
    assert!(locks.watch(None).is_err() && locks.sessions().await.is_err());
    assert!(locks.set_limit("a", None).await.is_err());
}

/// One case for each limit of a request. After each case another lock is acquired, and a hold of the same
/// client must still be live. If a refusal ended the client's stream, the client would open another
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_over_a_limit_is_refused_with_value_and_limit_and_ends_no_stream() {
    let service = Service::start();
    let counter = ConnectionCounter::start(&service).await;
    let locks = Locks::connect(&format!("lockkeeper://{}", counter.address)).await.unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    let connections = counter.accepted();
    let all = |count: usize| locks.all((0..count).map(|number| format!("{number:0>100}")));
    let (ms, a) = (Duration::from_millis, || locks.mutex("a"));
    let cases: [(Lock, &str, &str); 16] = [
        (all(0), "0 names", "64"),
        (all(65), "65 names", "64"),
        (all(66), "66 names", "64"),
        // More bytes than a frame may have.
        (all(50_000), "50000 names", "64"),
        (locks.mutex("x".repeat(513)), "513 bytes", "512"),
        (a().meta("key", "x".repeat(1021)), "1025 bytes", "1024"),
        (locks.semaphore("s", 0), "0 permits", "65536"),
        (locks.semaphore("s", 65_537), "65537 permits", "65536"),
        (a().ttl(ms(999)), "999 ms", "1000 ms"),
        (a().ttl(ms(3_600_001)), "3600001 ms", "3600000 ms"),
        (a().keep_closed(ms(86_400_001)), "86400001 ms", "86400000 ms"),
        // In milliseconds this exceeds 2^64.
        (
            a().keep_closed(Duration::from_secs(18_446_744_073_709_552)),
            "18446744073709551615 ms",
            "86400000 ms",
        ),
        (a().lock_delay(ms(3_600_001)), "3600001 ms", "3600000 ms"),
        (a().lock_delay(Duration::MAX), "18446744073709551615 ms", "3600000 ms"),
        (a().ttl(ms(5_000)).linger(ms(5_001)), "5001 ms", "5000 ms"),
        (a().linger(Duration::MAX), "18446744073709551615 ms", "30000 ms"),
    ];
    for (number, (lock, value, limit)) in cases.into_iter().enumerate() {
        let answer = tokio::time::timeout(20 * SECOND, lock.acquire()).await;
        let error = answer.unwrap_or_else(|_| panic!("no answer for {value}")).unwrap_err().to_string();
        assert!(error.contains(value) && error.contains(limit), "{value}, {limit}: {error}");
        let other = locks.mutex(format!("other/{number}")).acquire().await.unwrap();
        other.release().await.unwrap();
    }
    let order = BreakOrder {
        name: name("held"),
        token: held.token_hint().unwrap(),
        reason: String::new(),
        by: String::new(),
        now: true,
    };
    for order in [
        BreakOrder { reason: "x".repeat(257), ..order.clone() },
        BreakOrder { by: "x".repeat(257), ..order.clone() },
        // More bytes than a call may have.
        BreakOrder { reason: "x".repeat(5 << 20), ..order },
    ] {
        let length = order.reason.len().max(order.by.len()).to_string();
        let error = locks.break_hold(order).await.unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Refused, "{error}");
        assert!(error.message.contains(&length) && error.message.contains("256"), "{error}");
    }
    let error = locks.set_limit("s", Some(65_537)).await.unwrap_err();
    assert!(error.message.contains("65537") && error.message.contains("65536"), "{error}");
    assert_eq!(held.loss(), None);
    assert_eq!(counter.accepted(), connections, "a stream has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_at_every_limit_is_granted() {
    let service = Service::start();
    let locks = service.client(&"x".repeat(10_000)).await;
    let names: Vec<String> = (0..64).map(|number| format!("{number:0>512}")).collect();
    let lock = locks.all(&names).meta("key", "x".repeat(1020)).ttl(Duration::from_secs(3600));
    let lock = lock.keep_closed(Duration::from_secs(86_400)).lock_delay(Duration::from_secs(3600));
    let held = lock.linger(Duration::from_secs(3600)).acquire().await.unwrap();
    held.release().await.unwrap();
    let _permit = locks.semaphore("s", 65_536).acquire().await.unwrap();
}
