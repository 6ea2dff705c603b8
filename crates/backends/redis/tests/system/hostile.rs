//! A server that is broken, or none of Redis: what it sends costs its clients little memory, and they report
//! it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use lockkeeper::backends::RedisConnection;
use lockkeeper::{AcquireError, Locks, Wait};
use lockkeeper_rig::Redis;

use crate::connecting::why;
use crate::support::{SECOND, address, name, until};

/// How much a client may have received of a reply that is too long: what the sockets hold.
const RECEIVED_MAX: usize = 16 << 20;

/// The beginning of a reply, and what follows it without an end.
type Reply = (&'static str, &'static str);

const TOO_LONG: [Reply; 4] = [
    ("$2000000000\r\n", "x"),
    ("*1000000000\r\n", "+OK\r\n"),
    ("+", "x"),
    (">2\r\n+message\r\n%-1\r\n", "+OK\r\n"),
];

/// A proxy before a real server. Once it is armed, it replies itself to what a client sends, if that contains
/// `to`: by the beginning of a reply and, if there is one, by an endless rest.
struct Before {
    address: SocketAddr,
    armed: Arc<AtomicBool>,
    /// Bytes of the reply that the last client took.
    sent: Arc<AtomicUsize>,
}

impl Before {
    fn new(server: SocketAddr, reply: Reply) -> Self {
        Self::of_command(server, "", reply)
    }

    fn of_command(server: SocketAddr, to: &'static str, reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before =
            Self { address: listener.local_addr().unwrap(), armed: Arc::default(), sent: Arc::default() };
        let (armed, sent) = (before.armed.clone(), before.sent.clone());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (armed, sent) = (armed.clone(), sent.clone());
                thread::spawn(move || serve(client, server, &armed, to, reply, &sent));
            }
        });
        before
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

/// Serves one client until it, or the server, closes its connection.
fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    armed: &AtomicBool,
    to: &str,
    (begin, again): Reply,
    sent: &AtomicUsize,
) -> Option<()> {
    let mut server = TcpStream::connect(server).ok()?;
    let (mut answers, mut to_client) = (server.try_clone().ok()?, client.try_clone().ok()?);
    thread::spawn(move || std::io::copy(&mut answers, &mut to_client));
    let mut asked = [0; 4096];
    loop {
        let count = client.read(&mut asked).ok().filter(|count| *count > 0)?;
        let is_to = || to.is_empty() || asked[..count].windows(to.len()).any(|part| part == to.as_bytes());
        if !armed.load(Ordering::Relaxed) || !is_to() {
            server.write_all(&asked[..count]).ok()?;
            continue;
        }
        client.write_all(begin.as_bytes()).ok()?;
        sent.store(begin.len(), Ordering::Relaxed);
        if !again.is_empty() {
            let again = again.repeat((64 << 10) / again.len());
            loop {
                client.write_all(again.as_bytes()).ok()?;
                sent.fetch_add(again.len(), Ordering::Relaxed);
            }
        }
    }
}

#[tokio::test]
async fn a_reply_that_is_too_long_ends_the_attempt_to_connect() {
    let redis = Redis::start();
    for reply in TOO_LONG {
        let before = Before::new(address(&redis), reply);
        before.armed.store(true, Ordering::Relaxed);
        let url = before.url();
        for error in [why(&url).await, why(&format!("{url}?cluster=true")).await, sentinel(&url).await] {
            assert!(
                error.contains("it sent a") && error.contains("limit") || error.contains("at most"),
                "{error}"
            );
        }
        let connecting = RedisConnection::connect(&url.parse().unwrap(), 5 * SECOND).await;
        let error = connecting.map(drop).unwrap_err().to_string();
        assert!(error.contains("it sent a"), "{error}");
        assert!(before.sent.load(Ordering::Relaxed) < RECEIVED_MAX, "{reply:?}");
    }
}

async fn sentinel(url: &str) -> String {
    why(&format!("{url}?sentinel=main")).await
}

/// A reply that is none of its command's is an error, and never "nothing is locked" or a grant.
#[tokio::test]
async fn a_reply_of_another_kind_is_an_error() {
    let redis = Redis::start();
    let real = Locks::connect(&redis.url()).await.unwrap();
    let held = real.mutex("jobs").acquire().await.unwrap();
    let before = Before::of_command(address(&redis), "EVAL", ("+OK\r\n+OK\r\n", ""));
    before.armed.store(true, Ordering::Relaxed);
    let error = why(&before.url()).await;
    assert!(error.contains("to EVAL, which is no reply to that"), "{error}");
    for (command, reply) in [
        ("DBSIZE", "+OK\r\n"),
        ("DBSIZE", ":-1\r\n"),
        ("SCAN", "+OK\r\n"),
        ("SCAN", "*0\r\n"),
        ("SCAN", "*2\r\n+next\r\n*0\r\n"),
        ("SCAN", "*2\r\n$1\r\n0\r\n+none\r\n"),
        ("SCAN", "*2\r\n$1\r\n0\r\n*1\r\n:1\r\n"),
        ("GETRANGE", ":1\r\n"),
        ("GETRANGE", "-NOPERM this user has no permissions to run the 'getrange' command\r\n"),
        ("EVALSHA", "+OK\r\n"),
        ("EVALSHA", "*0\r\n"),
    ] {
        let before = Before::of_command(address(&redis), command, (reply, ""));
        let locks = Locks::connect(&before.url()).await.unwrap();
        before.armed.store(true, Ordering::Relaxed);
        let error = locks.list(None).await.map(drop).unwrap_err().to_string();
        let says_what = error.contains(" replied ") || error.contains("refused: NOPERM");
        assert!(says_what, "{command} {reply}: {error}");
        if command == "EVALSHA" {
            let error = locks.inspect(&name("jobs")).await.map(drop).unwrap_err().to_string();
            assert!(error.contains(" replied "), "{reply}: {error}");
            let error = locks.mutex("jobs").acquire().await.map(drop).unwrap_err().to_string();
            assert!(error.contains(" replied "), "{reply}: {error}");
        }
    }
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_scan_that_does_not_end_is_an_error() {
    let redis = Redis::start();
    let before = Before::of_command(address(&redis), "SCAN", ("*2\r\n$1\r\n7\r\n*0\r\n", ""));
    let locks = Locks::connect(&before.url()).await.unwrap();
    before.armed.store(true, Ordering::Relaxed);
    let listing = tokio::time::timeout(60 * SECOND, locks.list(None)).await.expect("it ends");
    let error = listing.map(drop).unwrap_err().to_string();
    assert!(error.contains("SCAN") && error.contains("10000 steps"), "{error}");
}

/// It is nested too deeply for the client library's parser.
#[tokio::test]
async fn a_reply_without_a_bottom_is_refused() {
    let redis = Redis::start();
    let before = Before::new(address(&redis), ("", "*1\r\n"));
    let locks = Locks::connect(&before.url()).await.unwrap();
    before.armed.store(true, Ordering::Relaxed);
    let error = locks.inspect(&name("jobs")).await.unwrap_err().to_string();
    assert!(error.contains("it sent what is no reply of Redis"), "{error}");
    assert!(why(&before.url()).await.contains("is it a Redis server"));
}

/// In a later call, it ends the connection, and the call is repeated on the next one.
#[tokio::test]
async fn a_reply_that_is_too_long_is_the_error_of_a_call() {
    let redis = Redis::start();
    for reply in TOO_LONG {
        let before = Before::new(address(&redis), reply);
        let locks = Locks::connect(&before.url()).await.unwrap();
        locks.mutex("jobs").acquire().await.unwrap().release().await.unwrap();
        before.armed.store(true, Ordering::Relaxed);
        let error = locks.inspect(&name("jobs")).await.unwrap_err().to_string();
        assert!(error.contains("it sent a"), "{error}");
        assert!(before.sent.load(Ordering::Relaxed) < RECEIVED_MAX, "{reply:?}");
        before.armed.store(false, Ordering::Relaxed);
        let acquired = async || locks.mutex("jobs").acquire().await.ok();
        until("the server is right again", acquired).await.release().await.unwrap();
    }
    let before = Before::new(address(&redis), TOO_LONG[0]);
    let lock = Locks::connect(&before.url()).await.unwrap().mutex("jobs").ttl(SECOND);
    before.armed.store(true, Ordering::Relaxed);
    until("an acquire reports it", async || {
        let error = lock.acquire().await.map(drop).unwrap_err().to_string();
        error.contains("it sent a").then_some(())
    })
    .await;
}

/// What others wrote at the key of a lock may be long: it is shown in part.
#[tokio::test]
async fn a_long_value_of_another_client_is_no_long_reply() {
    let redis = Redis::start();
    let locks = Locks::connect(&redis.url()).await.unwrap();
    redis.cli(&["SETRANGE", "jobs", "20000000", "x"]);
    let busy = locks.mutex("jobs").wait(Wait::No).acquire().await.map(drop).unwrap_err();
    assert!(matches!(busy, AcquireError::Busy(_)), "{busy}");
    assert_eq!(locks.inspect(&name("jobs")).await.unwrap().hold_count, 1);
}

/// The longest reply that our own scripts give: 65,536 permits, each with the longest texts.
#[tokio::test]
async fn a_lock_with_all_of_its_permits_held_can_be_inspected() {
    const FILL: &str = r"
        local texts = string.rep('\n' .. string.rep('o', 256), 3) .. '\nkey=' .. string.rep('m', 1020)
        local till = redis.call('TIME')[1] * 1000 + 20000000
        for slot = 0, 65535 do
          local id = string.format('%032x-%020d', slot, slot)
          redis.call('HSET', KEYS[2], id, 'lockkeeper:' .. id .. ':1:revoked:9007199254740991:1234567890123456:10000000:0123456789abcdef' .. texts)
          redis.call('ZADD', KEYS[3], slot, id)
          redis.call('ZADD', KEYS[4], till, id)
        end
        redis.call('SET', KEYS[1], 'lockkeeper:permits:1:65536\nme')";
    let redis = Redis::start();
    let keys = ["permits", "slots", "until"].map(|part| format!("{{jobs}}:lockkeeper:{part}"));
    redis.cli(&["EVAL", FILL, "4", "jobs", &keys[0], &keys[1], &keys[2]]);
    let locks = Locks::connect(&redis.url()).await.unwrap();
    // On a loaded machine, 14 MiB may take longer than the time limit of a call.
    let deadline = Instant::now() + 120 * SECOND;
    let info = loop {
        match locks.inspect(&name("jobs")).await {
            Ok(info) => break info,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    assert_eq!((info.hold_count, info.permits), (65_536, Some(65_536)));
    let shown = info.holds.iter().filter(|holder| !holder.label.is_empty()).count();
    assert_eq!(shown, 2049);
}
