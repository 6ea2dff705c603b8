//! What only our own service can do for tools and people, against a real one in this process.

use std::sync::mpsc;
use std::time::Duration;

use lockkeeper::{AcquireError, BackendErrorKind, LockName, Locks, TokenStatus, Watch, WatchEvent};
use lockkeeper_server::{Options, Running};
use tempfile::TempDir;

const SECOND: Duration = Duration::from_secs(1);

/// A service of one node; stops when dropped.
struct Service {
    running: Running,
    _data: TempDir,
}

impl Service {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let options = Options { listen: "127.0.0.1:0".to_owned(), ..Options::new(data.path().join("data")) };
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
    assert_eq!((first.owner.as_str(), first.ttl, first.requests), ("one", 12 * SECOND, 1));
    assert!(first.attached && first.left <= first.ttl && first.id < second.id);
    let listed = two.list(Some(&name("a"))).await.unwrap();
    assert_eq!(listed.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["a/b"]);
    let token = held.token_hint().unwrap();
    assert_eq!(two.check_token(&name("a/b"), token.get()).await.unwrap(), TokenStatus::Current);
    let worth = two.check_token(&name("a/b"), other.token_hint().unwrap().get()).await.unwrap();
    assert_eq!(worth, TokenStatus::NotCurrent { live: vec![token] });
    let status = one.status().await.unwrap();
    assert!(status.leads && status.leader == Some(status.node));
    assert_eq!((status.sessions, status.requests, status.streams), (2, 2, 2));
    assert_eq!(status.last_token, other.token_hint().unwrap().get());
}

/// More than one page of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_come_whole() {
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
    let listed = locks.list(Some(&name("many"))).await.unwrap();
    assert_eq!(listed.len(), held.len());
    assert!(listed.windows(2).all(|pair| pair[0].name < pair[1].name));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_tells_the_state_and_then_every_change() {
    let service = Service::start();
    let locks = service.client("one").await;
    let held = locks.mutex("w/a").acquire().await.unwrap();
    let mut watch = locks.watch(Some(&name("w"))).unwrap();
    let WatchEvent::State(state) = next(&mut watch).await else { panic!("first the state") };
    assert_eq!((state.name.as_str(), state.holders.len()), ("w/a", 1));
    assert_eq!(next(&mut watch).await, WatchEvent::Synced);
    held.release().await.unwrap();
    let WatchEvent::Changed(free) = next(&mut watch).await else { panic!("a vacancy is an event") };
    assert!(free.name.as_str() == "w/a" && free.holders.is_empty());
    let _elsewhere = locks.mutex("other").acquire().await.unwrap();
    let _again = locks.mutex("w/b").acquire().await.unwrap();
    let WatchEvent::Changed(changed) = next(&mut watch).await else { panic!("a change") };
    assert_eq!(changed.name.as_str(), "w/b", "what lies elsewhere is not told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_number_of_permits_goes_for_everyone() {
    let service = Service::start();
    let locks = service.client("one").await;
    locks.set_limit(&name("pool"), Some(2)).await.unwrap();
    let one = locks.semaphore("pool", 7).acquire().await.unwrap();
    assert_eq!(one.permits()[0].limit, 2);
    let _two = locks.semaphore_in_force("pool").acquire().await.unwrap();
    assert!(locks.semaphore("pool", 7).try_acquire().await.unwrap().is_none());
    let refused = locks.set_limit(&name("pool"), Some(0)).await.unwrap_err();
    assert_eq!(refused.kind, BackendErrorKind::Refused, "{refused}");
    locks.set_limit(&name("other"), None).await.unwrap();
    let none = locks.semaphore_in_force("other").acquire().await;
    assert!(matches!(none, Err(AcquireError::Backend(error)) if error.kind == BackendErrorKind::Refused));
}

#[tokio::test]
async fn other_services_say_that_they_cannot() {
    let locks = Locks::connect("memory:").await.unwrap();
    let error = locks.status().await.unwrap_err();
    assert!(error.kind == BackendErrorKind::Unsupported && error.message.contains("`memory`"), "{error}");
    assert!(locks.watch(None).is_err() && locks.sessions().await.is_err());
    assert!(locks.set_limit(&name("a"), None).await.is_err());
}
