//! Other clients of etcd in one queue with ours: `etcdctl lock`, and the lock service of the server itself,
//! which is Go's `concurrency.Mutex`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::{AcquireError, Wait};
use lockkeeper_rig::Etcd;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{client, until_waiting};

/// `etcdctl lock NAME`: prints its key once it holds the lock, and releases it when it is interrupted.
struct Etcdctl(Child);

impl Etcdctl {
    fn start(etcd: &Etcd, name: &str) -> Self {
        let child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([&format!("--endpoints=127.0.0.1:{}", etcd.port()), "lock", "--ttl=3", name])
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("etcdctl of Debian's package etcd-client"))
    }

    /// Blocks until it holds the lock.
    fn until_held(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("jobs/"), "{line}");
    }

    fn release(mut self) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), Signal::SIGINT).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_lock_and_ours_exclude_each_other_in_one_queue() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "?layout=plain").await;
    let mut theirs = Etcdctl::start(&etcd, "jobs");
    tokio::task::block_in_place(|| theirs.until_held());
    match locks.mutex("jobs").wait(Wait::No).acquire().await {
        Err(AcquireError::Busy(busy)) => {
            assert!(
                busy.holder.as_deref().is_some_and(|holder| holder.contains("another client (`lease ")),
                "{busy}"
            );
        }
        other => panic!("{other:?}"),
    }
    let lock = locks.mutex("jobs");
    let ours = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_waiting(&locks, "jobs", 1).await;
    let mut after = Etcdctl::start(&etcd, "jobs");
    until_waiting(&locks, "jobs", 2).await;
    theirs.release();
    let held = ours.await.unwrap();
    assert_eq!(locks.inspect("jobs").await.unwrap().waiter_count, 1, "theirs waits behind ours");
    held.release().await.unwrap();
    tokio::task::block_in_place(|| after.until_held());
    // Killed, it holds until its lease is over.
    let lock = locks.mutex("jobs");
    let ours = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_waiting(&locks, "jobs", 1).await;
    after.0.kill().unwrap();
    ours.await.unwrap().release().await.unwrap();
}

/// A call of the server's JSON gateway. Blocks until it is answered.
fn gateway(port: u16, path: &str, body: &str) -> String {
    let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(
        server,
        "POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    server.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    answer
}

/// The value of a text field in a JSON answer.
fn field(answer: &str, name: &str) -> String {
    let rest =
        answer.split(&format!("\"{name}\":\"")).nth(1).unwrap_or_else(|| panic!("no {name} in {answer}"));
    rest.split('"').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_service_of_etcd_and_ours_exclude_each_other_in_one_queue() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "?layout=plain").await;
    let port = etcd.port();
    let lease = field(&gateway(port, "/v3/lease/grant", r#"{"TTL": 60}"#), "ID");
    // "jobs" in base64.
    let request = format!(r#"{{"name": "am9icw==", "lease": "{lease}"}}"#);
    let lock = {
        let request = request.clone();
        move || field(&gateway(port, "/v3/lock/lock", &request), "key")
    };
    let theirs = tokio::task::spawn_blocking(lock.clone()).await.unwrap();
    assert!(locks.mutex("jobs").try_acquire().await.unwrap().is_none());
    let ours = locks.mutex("jobs");
    let ours = tokio::spawn(async move { ours.acquire().await.unwrap() });
    until_waiting(&locks, "jobs", 1).await;
    let unlock = move |key: String| gateway(port, "/v3/lock/unlock", &format!(r#"{{"key": "{key}"}}"#));
    tokio::task::spawn_blocking(move || unlock(theirs)).await.unwrap();
    let held = ours.await.unwrap();
    let waiting = tokio::task::spawn_blocking(lock);
    until_waiting(&locks, "jobs", 1).await;
    held.release().await.unwrap();
    let theirs = waiting.await.unwrap();
    // Their lease ends, as after a crash.
    let ours = locks.mutex("jobs");
    let ours = tokio::spawn(async move { ours.acquire().await.unwrap() });
    until_waiting(&locks, "jobs", 1).await;
    assert!(!theirs.is_empty());
    let revoke = format!(r#"{{"ID": "{lease}"}}"#);
    tokio::task::spawn_blocking(move || gateway(port, "/v3/lease/revoke", &revoke)).await.unwrap();
    ours.await.unwrap().release().await.unwrap();
}
