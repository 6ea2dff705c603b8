//! TLS, and users.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{AcquireError, Guard, Locks, Unfenced, Wait};
use lockkeeper_rig::{Etcd, Faults};
use tokio::sync::Notify;

use crate::{until, until_waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_asks_for_both_certificates() {
    let etcd = Etcd::start_tls();
    let [ca, certificate, key] = etcd.certificates().map(|file| file.display().to_string());
    let address = format!("127.0.0.1:{}", etcd.port());
    let url = format!("etcds://{address}?tls-ca={ca}&tls-cert={certificate}&tls-key={key}");
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
    for (url, words) in [
        (format!("etcd://{address}"), "no member of etcd answers"),
        (format!("etcds://{address}?tls-ca={ca}"), "no member of etcd answers"),
        (format!("etcds://{address}?tls-cert={certificate}&tls-key={key}"), "UnknownIssuer"),
        (format!("etcds://{address}?tls-ca=/nowhere"), "/nowhere"),
        (format!("etcds://{address}?tls-ca={ca}&tls-cert={certificate}"), "tls-key"),
        (format!("etcd://{address}?tls-ca={ca}"), "etcds://"),
    ] {
        let error = Locks::connect(&url).await.expect_err(&url);
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}

/// Holds outlive some seconds without a renewal, as on a busy machine.
const TTL: Duration = Duration::from_secs(6);

/// Makes the users `root` (password `secret`) and `ana` (`hers`), who may use locks, and requires logins.
fn require_logins(etcd: &Etcd) {
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "ana:hers"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "--prefix=true", "readwrite", "lockkeeper"],
        &["user", "grant-role", "ana", "locks"],
        &["auth", "enable"],
    ] {
        // A role `root` must exist before it is given to the user.
        if command[..2] == ["user", "grant-role"] && command[2] == "root" {
            let _ = etcd.try_cli(&["role", "add", "root"]);
        }
        etcd.cli(command);
    }
}

async fn until_renewed(held: &Guard<Unfenced>) {
    let before = held.valid_until().unwrap();
    until("it is renewed", async || (held.valid_until().unwrap() > before).then_some(())).await;
}

/// A token of JWT is refused as soon as any user was changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_users_and_of_required_logins_end_no_hold() {
    let etcd = Etcd::with_jwt("10m");
    let plain = Locks::connect(&etcd.url()).await.unwrap();
    require_logins(&etcd);
    let ana = format!("etcd://ana:hers@127.0.0.1:{}", etcd.port());
    let (locks, waits) = (Locks::connect(&ana).await.unwrap(), Locks::connect(&ana).await.unwrap());
    let held = locks.mutex("x").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waits.mutex("x").acquire().await });
    until("it waits", async || (locks.inspect("x").await.unwrap().waiter_count == 1).then_some(())).await;
    let root = |command: &[&str]| etcd.cli(&[&["--user", "root:secret"], command].concat());
    root(&["user", "add", "eve:hers"]);
    until_renewed(&held).await;
    let error = plain.mutex("y").acquire().await.expect_err("it has no login").to_string();
    assert!(error.contains("etcd://user:password@host"), "{error}");
    root(&["auth", "disable"]);
    until_renewed(&held).await;
    let early = Locks::connect(&ana).await.expect("a login that is not required");
    let free = early.mutex("y").ttl(TTL).acquire().await.unwrap();
    etcd.cli(&["auth", "enable"]);
    until_renewed(&held).await;
    // A login takes seconds on a busy machine, longer than a release waits for it.
    until_renewed(&free).await;
    free.release().await.unwrap();
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// A waiter whose attempts are denied for a while is granted before one that has come later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_keeps_its_place_while_it_is_denied() {
    let etcd = Etcd::start();
    require_logins(&etcd);
    let root = |command: &[&str]| drop(etcd.cli(&[&["--user", "root:secret"], command].concat()));
    let as_user = |login: &str| format!("etcd://{login}@127.0.0.1:{}", etcd.port());
    root(&["user", "add", "bob:his"]);
    let allow = || root(&["user", "grant-role", "bob", "locks"]);
    allow();
    let ana = as_user("ana:hers");
    let deny = || root(&["user", "revoke-role", "bob", "locks"]);
    check_place(&ana, &as_user("bob:his"), "permission denied", deny, allow).await;
    let allow = || root(&["auth", "disable"]);
    allow();
    check_place(&ana, &etcd.url(), "requires a login", || drop(etcd.cli(&["auth", "enable"])), allow).await;
}

async fn check_place(others: &str, first: &str, why: &'static str, deny: impl Fn(), allow: impl Fn()) {
    let (holder, second) = (Locks::connect(others).await.unwrap(), Locks::connect(others).await.unwrap());
    let held = holder.mutex("x").acquire().await.unwrap();
    let refused = Arc::new(Notify::new());
    let tell = refused.clone();
    // Its lease can't be ended meanwhile: with another one it would queue behind its own key, until that
    // expires.
    let lock = Locks::connect(first).await.unwrap().mutex("x").ttl(Duration::from_secs(600));
    let lock = lock.on_refused(move |refusal| {
        assert!(refusal.message.contains(why), "{refusal}");
        tell.notify_one();
    });
    let first = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&holder, "x", 1).await;
    let mut second = tokio::spawn(async move { second.mutex("x").acquire().await });
    until_waiting(&holder, "x", 2).await;
    deny();
    held.release().await.unwrap();
    let denied = tokio::time::timeout(Duration::from_secs(30), refused.notified()).await;
    denied.expect("an attempt after the release is denied");
    allow();
    let first = tokio::select! {
        first = first => first.unwrap().expect("it has waited on"),
        _ = &mut second => panic!("it has lost its place: {why}"),
    };
    first.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_end_are_replaced_before_the_answer() {
    let etcd = Etcd::with_jwt("1500ms");
    require_logins(&etcd);
    let ana = format!("etcd://ana:hers@127.0.0.1:{}", etcd.port());
    let (locks, waits) = (Locks::connect(&ana).await.unwrap(), Locks::connect(&ana).await.unwrap());
    let held = locks.mutex("x").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waits.mutex("x").acquire().await });
    // Renewals are a third of the ttl apart, so that the tokens have ended.
    until_renewed(&held).await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// Changes the password of `ana`, with etcd's own program.
fn change_password(etcd: &Etcd, password: &str) {
    let mut cli = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints=127.0.0.1:{}", etcd.port()))
        .args(["--user", "root:secret", "user", "passwd", "ana", "--interactive=false"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(cli.stdin.take().unwrap(), "{password}").unwrap();
    assert!(cli.wait().unwrap().success());
}

/// The change ends the tokens of earlier logins. Some clients try the former password until the file is
/// replaced, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn password_is_read_again_for_each_login() {
    let etcd = Etcd::start();
    require_logins(&etcd);
    let (faults, folder) = (Faults::default(), tempfile::tempdir().unwrap());
    let file = folder.path().join("password");
    fs::write(&file, "hers\n").unwrap();
    let proxy = faults.proxy("ana", SocketAddr::from(([127, 0, 0, 1], etcd.port())));
    let url = format!("etcd://ana@{proxy}?password-file={}", file.display());
    let (locks, waits) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let held = locks.mutex("x").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waits.mutex("x").acquire().await });
    until("it waits", async || (locks.inspect("x").await.unwrap().waiter_count == 1).then_some(())).await;
    change_password(&etcd, "new");
    faults.close_connections("ana");
    held.verify().await.expect_err("the former password is refused");
    assert!(held.loss().is_none() && !waiting.is_finished());
    fs::write(&file, "new\n").unwrap();
    until("it is confirmed", async || held.verify().await.ok()).await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_need_their_password_and_the_permission() {
    let etcd = Etcd::start();
    require_logins(&etcd);
    etcd.cli(&["--user", "root:secret", "user", "add", "bob:his"]);
    let as_user = |login: &str| format!("etcd://{login}@127.0.0.1:{}", etcd.port());
    let ana = Locks::connect(&as_user("ana:hers")).await.unwrap();
    ana.mutex("x").acquire().await.unwrap().release().await.unwrap();
    let error = Locks::connect(&as_user("ana:wrong")).await.expect_err("wrong password");
    assert!(error.to_string().contains("user and password"), "{error}");
    let bob = Locks::connect(&as_user("bob:his")).await.unwrap();
    let error = bob.mutex("x").wait(Wait::No).acquire().await.expect_err("no permission");
    assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
    assert!(error.to_string().contains("permission denied"), "{error}");
}
