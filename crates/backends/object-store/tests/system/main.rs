//! `s3:` and `az:` on servers that check the condition of a put and store the object in one step: SeaweedFS
//! and Azurite.

mod contract;
mod refused;
mod terraform;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{BreakOrder, Broken, Guard, Locks, Unfenced, VerifyError};
use lockkeeper_rig::{Azurite, Faults, Protocol, SeaweedFs, ServiceRefusal};

/// Used where a test waits for the end of a hold.
const TTL: Duration = Duration::from_secs(2);

/// The directory in which `cargo xtask test` installs packages of other registries.
fn foreign() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign")
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The URL of a server with S3's API.
fn url(address: SocketAddr, more: &str) -> String {
    format!("s3://lockkeeper/some/locks?credentials=none&poll_ms=20&endpoint=http://{address}{more}")
}

fn token(guard: &Guard<Unfenced>) -> u64 {
    guard.token_hint().unwrap().get()
}

/// Sends an unsigned request with these further headers, and returns the status of the answer.
fn request(port: u16, method: &str, path: &str, headers: &str, body: &str) -> String {
    let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}");
    write!(server, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    server.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Calls `check` with the URL of a bucket of each server.
async fn on_each_server(check: impl AsyncFn(&str)) {
    let seaweedfs = SeaweedFs::start(&foreign());
    check(&url(address(seaweedfs.port()), "")).await;
    let azurite = Azurite::start(&foreign());
    check(&format!("az://lockkeeper/locks?credentials=none&poll_ms=20&endpoint={}", azurite.url())).await;
}

/// 16 clients change one object at the same time: each joins as a reader, sees itself, and leaves. No grant
/// is lost, and none is given twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_writers_lose_nothing() {
    on_each_server(async |url| {
        let mut tasks = Vec::new();
        for number in 0..16 {
            let locks = Locks::connect_as(url, &format!("reader {number}")).await.unwrap();
            tasks.push(tokio::spawn(async move {
                let mut tokens = Vec::new();
                for _ in 0..3 {
                    let held = locks.rw("x").read().acquire().await.unwrap();
                    held.verify().await.unwrap();
                    tokens.push(token(&held));
                    held.release().await.unwrap();
                }
                tokens
            }));
        }
        let mut tokens = Vec::new();
        for task in tasks {
            tokens.extend(task.await.unwrap());
        }
        assert_eq!(tokens.iter().copied().collect::<BTreeSet<_>>().len(), 48, "{url}: {tokens:?}");
        let locks = Locks::connect(url).await.unwrap();
        assert_eq!(locks.inspect("x").await.unwrap().hold_count, 0);
        let held = locks.rw("x").write().acquire().await.unwrap();
        // A put in doubt that is overtaken may use up a token, and no token is used twice.
        assert!(token(&held) > 48, "{url}");
        held.release().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_and_tokens_rise_on_each_server() {
    on_each_server(async |url| {
        let (one, two) = (Locks::connect(url).await.unwrap(), Locks::connect_as(url, "two").await.unwrap());
        for (number, name) in ["orders", "orders/42", "ü/ 1%+?#&=~[x]"].into_iter().enumerate() {
            let mut last = 0;
            for _ in 0..2 {
                let held = one.mutex(name).acquire().await.unwrap();
                assert!(token(&held) > last);
                last = token(&held);
                assert!(two.mutex(name).try_acquire().await.unwrap().is_none());
                let listed = two.list(None).await.unwrap();
                assert!(listed.iter().any(|lock| lock.name.as_str() == name), "{url}: {listed:?}");
                held.release().await.unwrap();
            }
            let held = two.mutex(name).acquire().await.unwrap();
            let waits = one.mutex(name);
            let waiting = tokio::spawn(async move { waits.acquire().await.unwrap() });
            held.release().await.unwrap();
            waiting.await.unwrap().release().await.unwrap();
            assert!(two.list(None).await.unwrap().is_empty(), "{url}: {number}");
        }
        let below = one.list(Some("orders")).await.unwrap();
        assert!(below.is_empty());
        let error = one.mutex("a/../b").acquire().await.expect_err("no name of an object");
        assert!(error.to_string().contains("name of an object"), "{error}");
    })
    .await;
}

/// A reader that dies makes room for the next, and is followed by a writer once all are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_reader_makes_room_and_live_one_stays() {
    let server = SeaweedFs::start(&foreign());
    let direct = url(address(server.port()), "");
    let faults = Faults::of(Protocol::S3);
    let dies = Locks::connect(&url(faults.proxy("dies", address(server.port())), "")).await.unwrap();
    let (lives, observes) = (Locks::connect(&direct).await.unwrap(), Locks::connect(&direct).await.unwrap());
    let lives_on = lives.rw("x").read().ttl(TTL).acquire().await.unwrap();
    let dead = dies.rw("x").read().ttl(TTL).acquire().await.unwrap();
    faults.cut_off("dies");
    let writes = observes.rw("x").write();
    let writing = tokio::spawn(async move { writes.acquire().await.unwrap() });
    lockkeeper_contract::until("the dead reader has lost its hold", async || dead.valid_until().err()).await;
    lives_on.verify().await.unwrap();
    assert!(!writing.is_finished());
    lives_on.release().await.unwrap();
    let wrote = writing.await.unwrap();
    assert!(token(&wrote) > token(&dead));
    wrote.release().await.unwrap();
    assert_eq!(lives.inspect("x").await.unwrap().hold_count, 0);
}

/// What the page's table of costs says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_hold_are_few() {
    let server = SeaweedFs::start(&foreign());
    let faults = Faults::of(Protocol::S3);
    let locks = Locks::connect(&url(faults.proxy("counted", address(server.port())), "")).await.unwrap();
    let requests = || faults.traffic("counted").iter().map(|connection| connection.calls).sum::<u64>();
    let ttl = Duration::from_secs(60);
    let mut before = requests();
    let mut since = || {
        let count = requests() - before;
        before = requests();
        count
    };
    let held = locks.mutex("x").ttl(ttl).acquire().await.unwrap();
    assert_eq!(since(), 2, "a read, and a put");
    held.verify().await.unwrap();
    assert_eq!(since(), 1, "a renewal is a put");
    held.release().await.unwrap();
    assert_eq!(since(), 1, "a release is a put");
    let again = locks.mutex("x").ttl(ttl).acquire().await.unwrap();
    assert_eq!(since(), 1, "this client was the last to write the object");
    assert!(locks.mutex("x").ttl(ttl).try_acquire().await.unwrap().is_none());
    assert_eq!(since(), 1, "a try is a read");
    again.release().await.unwrap();
    drop(Locks::connect(&url(faults.proxy("second", address(server.port())), "")).await.unwrap());
    let connect = faults.traffic("second").iter().map(|connection| connection.calls).sum::<u64>();
    assert_eq!(connect, 3, "the check of a later client: a read, and two puts that are refused");
}

/// The answers to a grant and to a release are lost; their repeats are refused because of their first copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_grant_and_own_release_are_recognized_after_a_lost_answer() {
    let server = SeaweedFs::start(&foreign());
    let faults = Faults::of(Protocol::S3);
    let locks = Locks::connect(&url(faults.proxy("loses", address(server.port())), "")).await.unwrap();
    let direct = Locks::connect(&url(address(server.port()), "")).await.unwrap();
    locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
    for round in 1..=3 {
        // This client knows the object: the first request is the put.
        faults.lose_answers(1);
        let held = locks.mutex("x").acquire().await.unwrap();
        assert_eq!(token(&held), 2 * round, "granted once");
        held.verify().await.unwrap();
        assert!(direct.mutex("x").try_acquire().await.unwrap().is_none());
        faults.lose_answers(1);
        held.release().await.unwrap();
        let next = direct.mutex("x").try_acquire().await.unwrap().expect("it is free");
        assert_eq!(token(&next), 2 * round + 1);
        next.verify().await.unwrap();
        next.release().await.unwrap();
        // It reads what the other client has written.
        assert!(locks.inspect("x").await.unwrap().holds.is_empty());
    }
}

/// S3 answers 409 to a put while another put of the object is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflict_of_puts_is_a_lost_race() {
    let server = SeaweedFs::start(&foreign());
    let faults = Faults::of(Protocol::S3);
    let locks = Locks::connect(&url(faults.proxy("races", address(server.port())), "")).await.unwrap();
    let text = "The conditional request cannot succeed due to a conflicting operation";
    faults.refuse_only(ServiceRefusal { code: "ConditionalRequestConflict", text }, "PUT ");
    let acquiring = tokio::spawn(async move { locks.mutex("x").acquire().await });
    lockkeeper_contract::until("puts are refused", async || (faults.refused() > 2).then_some(())).await;
    faults.stop_refusing();
    acquiring.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_broken_by_its_token() {
    let server = SeaweedFs::start(&foreign());
    let locks = Locks::connect(&url(address(server.port()), "")).await.unwrap();
    for now in [false, true] {
        let (stays, broken) =
            (locks.rw("x").read().acquire().await.unwrap(), locks.rw("x").read().acquire().await.unwrap());
        let order = BreakOrder {
            name: "x".parse().unwrap(),
            token: broken.token_hint().unwrap(),
            now,
            reason: "the test tries it".into(),
            by: "operator".into(),
        };
        assert_eq!(locks.break_hold(order).await.unwrap(), Broken::Done);
        assert!(matches!(broken.verify().await, Err(VerifyError::Lost(_))));
        drop(broken);
        stays.verify().await.unwrap();
        stays.release().await.unwrap();
    }
}
