//! Faults of a server or its address: each is reported soon and clearly, and no call hangs.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Instant;

use ::redis::aio::ConnectionLike;
use lockkeeper::backends::RedisConnection;
use lockkeeper::{AcquireError, BreakOrder, Locks};
use lockkeeper_rig::Redis;

use crate::support::{SECOND, loss, name};

/// Connects, and returns the error. Must return soon.
pub(crate) async fn why(url: &str) -> String {
    let began = Instant::now();
    let connecting = tokio::time::timeout(15 * SECOND, Locks::connect(url)).await;
    let error = connecting.unwrap_or_else(|_| panic!("{url} hangs")).map(drop).unwrap_err().to_string();
    assert!(began.elapsed() < 10 * SECOND, "{url}: {error}");
    error
}

/// A server that answers the first bytes of any connection with `words`, and then closes it.
fn stranger(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut asked = [0; 512];
            let _ = stream.read(&mut asked).and_then(|_| stream.write_all(words));
        }
    });
    format!("redis://{address}")
}

#[tokio::test]
async fn a_server_that_does_not_run_is_reported_with_its_address() {
    let redis = Redis::start();
    let url = redis.url();
    redis.kill();
    let error = why(&url).await;
    assert!(error.contains("is it running") && error.contains(&redis.port().to_string()), "{error}");
    let error = why("redis://no-such-host.invalid").await;
    assert!(error.contains("no-such-host.invalid:6379"), "{error}");
}

#[tokio::test]
async fn a_port_of_another_protocol_is_reported() {
    for words in
        [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"", b"\x15\x03\x01\x00\x02\x02\x46", b"220 ESMTP\r\n"]
    {
        let error = why(&stranger(words)).await;
        assert!(error.contains("is it a Redis server"), "{error}");
    }
}

/// The port accepts connections and sends nothing.
#[tokio::test]
async fn connecting_to_a_port_that_never_answers_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = why(&format!("redis://{}", listener.local_addr().unwrap())).await;
    assert!(error.contains("did not answer within 5s"), "{error}");
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_reported_without_showing_it() {
    let redis = Redis::with(&["--requirepass", "right"]);
    Locks::connect(&redis.url_as("", "right")).await.unwrap();
    let wrong = why(&redis.url_as("", "secret")).await;
    assert!(wrong.contains("WRONGPASS") && wrong.contains("check user and password"), "{wrong}");
    assert!(!wrong.contains("secret"), "{wrong}");
    let missing = why(&redis.url()).await;
    assert!(missing.contains("redis://user:password@host"), "{missing}");
}

/// For fences and records.
#[tokio::test]
async fn a_connection_for_others_takes_the_urls_of_locks() {
    let redis = Redis::with(&["--requirepass", "right"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "right").unwrap();
    let connect = async |url: &str| RedisConnection::connect(&url.parse().unwrap(), 5 * SECOND).await;
    let url = redis.url();
    let mut connection = connect(&format!("{url}/2?password-file={}", file.path().display())).await.unwrap();
    let set: String = ::redis::cmd("SET").arg("key").arg("value").query_async(&mut connection).await.unwrap();
    assert_eq!((&*set, connection.get_db()), ("OK", 2));
    for (url, why) in [
        (redis.url_as("", "wrong"), "check user and password"),
        (format!("{url}?cluster=true"), "one server"),
        (url.replace("redis:", "postgres:"), "`redis+unix`"),
    ] {
        let error = connect(&url).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_reported() {
    let redis = Redis::start();
    let error = why(&format!("{}/99", redis.url())).await;
    assert!(error.contains("out of range"), "{error}");
}

/// The permissions that docs/backends/redis.md lists.
const PERMISSIONS: &str = "+hello +eval +evalsha +subscribe +publish +time +type +exists +get +set +del +pttl +pexpire \
                           +pexpireat +zadd +zrem +zrange +zrevrange +zrangebyscore +zcard +zcount +zrank +zscore \
                           +hset +hget +hdel +hvals +scan +dbsize +getrange +config|get";

fn grant(redis: &Redis, user: &str, channels: &str, without: &str) {
    let mut rule = vec!["ACL", "SETUSER", user, "on", ">pass", "~app:*", "~{app:*", channels];
    rule.extend(PERMISSIONS.split_whitespace().filter(|permission| *permission != without));
    redis.cli(&rule);
}

#[tokio::test]
async fn the_permissions_that_the_page_lists_are_enough_and_needed() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/backends/redis.md"))
            .unwrap();
    for permission in PERMISSIONS.split_whitespace() {
        assert!(page.contains(permission), "the page lacks {permission}");
    }
    let redis = crate::support::durable();
    grant(&redis, "worker", "&lockkeeper:wake:*", "");
    let url = format!("{}?prefix=app:&fencing=counter", redis.url_as("worker", "pass"));
    let locks = Locks::connect(&url).await.unwrap();
    for lock in [locks.mutex("jobs"), locks.semaphore("jobs", 2)] {
        let lock = lock.ttl(2 * SECOND).keep_closed(SECOND);
        let held = lock.acquire().await.unwrap();
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap().release().await.unwrap() }
        });
        if held.slot().is_none() {
            crate::support::until_waiting(&locks, "jobs", 1).await;
        }
        assert_eq!(locks.list(None).await.unwrap().len(), 1);
        held.verify().await.unwrap();
        held.release().await.unwrap();
        waiting.await.unwrap();
        let held = lock.acquire().await.unwrap();
        let token = held.token_hint().unwrap();
        locks.check_token("jobs", token).await.unwrap();
        let order =
            |now| BreakOrder { name: name("jobs"), token, reason: "why".into(), by: "who".into(), now };
        locks.break_hold(order(false)).await.unwrap();
        loss(&held).await;
        locks.break_hold(order(true)).await.unwrap();
    }
    // The error of a missing permission refers to the page.
    grant(&redis, "deaf", "&other:*", "");
    let deaf = why(&format!("{}?prefix=app:", redis.url_as("deaf", "pass"))).await;
    assert!(deaf.contains("docs/backends/redis.md"), "{deaf}");
    grant(&redis, "weak", "&lockkeeper:wake:*", "+set");
    let weak = Locks::connect(&format!("{}?prefix=app:", redis.url_as("weak", "pass"))).await.unwrap();
    let Err(AcquireError::Backend(error)) = weak.mutex("jobs2").acquire().await else { panic!("allowed") };
    assert!(error.message.contains("docs/backends/redis.md"), "{error}");
}

/// The error of a server without free memory names the setting to change; the call does not hang.
#[tokio::test]
async fn a_server_without_memory_refuses() {
    let redis = Redis::with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let locks = Locks::connect(&redis.url()).await.unwrap();
    let acquired = tokio::time::timeout(20 * SECOND, locks.mutex("jobs").acquire()).await.unwrap();
    let Err(AcquireError::Backend(error)) = acquired else { panic!("{acquired:?}") };
    assert!(error.message.contains("maxmemory"), "{error}");
}

/// Existing holds are still renewed and released, and a waiter leaves no keys.
#[tokio::test]
async fn a_server_that_runs_out_of_memory_still_renews_and_releases() {
    let redis = Redis::with(&["--maxmemory-policy", "noeviction"]);
    let locks = Locks::connect(&redis.url()).await.unwrap();
    let alone = locks.mutex("jobs").ttl(3 * SECOND).keep_closed(SECOND).acquire().await.unwrap();
    let longer = locks.semaphore("slots", 2).ttl(60 * SECOND).acquire().await.unwrap();
    let permit = locks.semaphore("slots", 2).ttl(3 * SECOND).keep_closed(SECOND).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.mutex("jobs").ttl(3 * SECOND);
        async move { lock.acquire().await.map(drop) }
    });
    crate::support::until_waiting(&locks, "jobs", 1).await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for held in [&alone, &permit] {
        let before = held.valid_until().unwrap();
        for _ in 0..2 {
            let renewed = async || (held.valid_until().unwrap() > before).then_some(());
            crate::support::until("it is renewed", renewed).await;
            held.verify().await.unwrap();
        }
    }
    for held in [alone, permit, longer] {
        held.release().await.unwrap();
    }
    waiting.abort();
    crate::support::until("nothing is left", async || crate::support::keys(&redis).is_empty().then_some(()))
        .await;
}

/// As behind a proxy that knows no RESP3: messages to waiters arrive on another connection.
#[tokio::test]
async fn without_hello_resp2_is_used() {
    let redis = Redis::with(&["--rename-command", "HELLO", ""]);
    let (holds, waits) =
        (Locks::connect(&redis.url()).await.unwrap(), Locks::connect(&redis.url()).await.unwrap());
    let lock = holds.mutex("jobs").ttl(600 * SECOND);
    let held = tokio::time::timeout(20 * SECOND, lock.acquire()).await.expect("it is served").unwrap();
    let waiting =
        tokio::spawn(async move { waits.mutex("jobs").acquire().await.unwrap().release().await.unwrap() });
    crate::support::until_waiting(&holds, "jobs", 1).await;
    held.release().await.unwrap();
    tokio::time::timeout(20 * SECOND, waiting).await.expect("woken by a message").unwrap();
    redis.restart();
    holds.mutex("jobs").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_without_scripts_is_refused_at_connect() {
    let redis = Redis::with(&["--rename-command", "EVAL", ""]);
    let error = why(&redis.url()).await;
    assert!(error.contains("allow `EVAL` and `EVALSHA`"), "{error}");
    let redis = Redis::start();
    grant(&redis, "silent", "&lockkeeper:wake:*", "+eval");
    let error = why(&redis.url_as("silent", "pass")).await;
    assert!(error.contains("docs/backends/redis.md"), "{error}");
}

/// Connections, inspections and acquires wait for the end of a script that runs for long.
#[tokio::test]
async fn a_busy_server_is_waited_for() {
    let redis = std::sync::Arc::new(Redis::with(&["--busy-reply-threshold", "1"]));
    let early = Locks::connect(&redis.url()).await.unwrap();
    early.list(None).await.unwrap();
    let busy = redis.clone();
    let script = std::thread::spawn(move || busy.try_cli(&["EVAL", "while true do end", "0"]));
    let is_busy = async || redis.try_cli(&["PING"]).err().filter(|why| why.contains("BUSY"));
    crate::support::until("the script runs", is_busy).await;
    let url = format!("{}/1", redis.url());
    let mut listing = tokio::spawn(async move { early.list(None).await.map(drop) });
    let connecting = tokio::spawn(async move { Locks::connect(&url).await.map(drop) });
    assert!(tokio::time::timeout(SECOND / 2, &mut listing).await.is_err(), "it waits");
    redis.cli(&["SCRIPT", "KILL"]);
    listing.await.unwrap().unwrap();
    connecting.await.unwrap().unwrap();
    script.join().unwrap().unwrap_err();
}

#[tokio::test]
async fn a_unix_socket_is_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let redis = Redis::with(&["--unixsocket", socket.to_str().unwrap(), "--requirepass", "right"]);
    let url = format!("redis+unix://:right@{}?db=3", socket.display());
    let held = Locks::connect(&url).await.unwrap().mutex("jobs").acquire().await.unwrap();
    assert_eq!(redis.cli(&["-n", "3", "EXISTS", "jobs"]), "1");
    held.release().await.unwrap();
    redis.kill();
    let error = why(&url).await;
    assert!(error.contains(socket.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_server_that_asks_for_certificates_is_shown_one() {
    let redis = Redis::with_tls_and(&["--tls-auth-clients", "yes"]);
    let [certificate, key] = redis.certificate().map(|file| file.display().to_string());
    let url = format!("{}?tls-ca={}", redis.url(), redis.ca().display());
    let locks = Locks::connect(&format!("{url}&tls-cert={certificate}&tls-key={key}")).await.unwrap();
    locks.mutex("jobs").acquire().await.unwrap().release().await.unwrap();
    let without = why(&url).await;
    assert!(without.contains("tls-cert"), "{without}");
}

#[tokio::test]
async fn files_of_tls_are_read_again_for_each_connection() {
    let redis = Redis::with_tls();
    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("ca.pem");
    let replace = |file: &std::path::Path| {
        std::fs::copy(file, &trusted).unwrap();
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    };
    std::fs::copy(redis.ca(), &trusted).unwrap();
    let locks = Locks::connect(&format!("{}?tls-ca={}", redis.url(), trusted.display())).await.unwrap();
    let listed = async || locks.list(None).await;
    listed().await.unwrap();
    replace(redis.stranger_ca());
    crate::support::until("the server is not trusted", async || listed().await.err()).await;
    replace(redis.ca());
    crate::support::until("it is trusted again", async || listed().await.ok()).await;
}

#[tokio::test]
async fn tls_mismatches_and_untrusted_certificates_are_reported() {
    let redis = Redis::with_tls();
    let url = redis.url();
    let trusting = format!("{url}?tls-ca={}", redis.ca().display());
    let locks = Locks::connect(&trusting).await.unwrap();
    locks.mutex("jobs").acquire().await.unwrap().release().await.unwrap();
    let plain = why(&url.replace("rediss://", "redis://")).await;
    assert!(plain.contains("rediss://"), "{plain}");
    let stranger = why(&format!("{url}?tls-ca={}", redis.stranger_ca().display())).await;
    assert!(stranger.contains("tls-ca"), "{stranger}");
    let unknown = why(&url).await;
    assert!(unknown.contains("tls-ca"), "{unknown}");
    let without = why(&Redis::start().url().replace("redis://", "rediss://")).await;
    assert!(without.contains("does it speak TLS"), "{without}");
    let missing = why(&format!("{url}?tls-ca=/no/such/file")).await;
    assert!(missing.contains("/no/such/file"), "{missing}");
}
