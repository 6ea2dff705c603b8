//! Which connections are kept, refused and closed. The callers authenticate with tokens on the HTTP port, and
//! make one call per connection.

use std::net::IpAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use super::*;
use crate::access::NewToken;
use crate::files::Reload as _;

const PERMISSIONS: &str = "[[allow]]\nwho = [\"shop\", \"stock\"]\nactions = [\"acquire\"]\nnames = [\"*\"]\n\n\
                           [[allow]]\nwho = [\"ops\"]\nactions = [\"admin\"]\n";
/// 16 connections on the HTTP port, at most 8 of them of one client. 4 of all connections are reserved, 2 of
/// these for connections that wait.
const LIMITS: ConnectionLimits =
    ConnectionLimits { most: 32, of_client: 12, reserved: 4, idle_timeout: Duration::from_secs(60) };
const OF_CLIENT_HTTP: u8 = 8;
const HTTP: u8 = 16;

/// A node with tokens for these callers.
struct Callers {
    rig: Rig,
    folder: tempfile::TempDir,
    tokens: Vec<(&'static str, String)>,
}

impl Callers {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = ["shop", "stock", "ops"].map(|name| (name, NewToken::make(name).unwrap()));
        let lines: String = made.iter().map(|(_, token)| format!("{}\n", token.line)).collect();
        let (tokens, permissions) = (folder.path().join("tokens"), folder.path().join("permissions"));
        std::fs::write(&tokens, lines).unwrap();
        std::fs::write(&permissions, PERMISSIONS).unwrap();
        let access = AccessFiles { tokens: Some(tokens), permissions: Some(permissions) };
        let rig = Rig::start_limited(None, None, &access, LIMITS).await;
        Self { rig, folder, tokens: made.map(|(name, token)| (name, token.token)).into() }
    }

    /// Makes one call from this loopback address. Returns the connection, which stays open, or the text of
    /// the refusal.
    async fn call(&self, who: &str, host: u8) -> Result<TcpStream, String> {
        let mut socket = connect(&self.rig, host).await;
        let token = &self.tokens.iter().find(|(name, _)| *name == who).unwrap().1;
        let call =
            format!("GET /v1/audit HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
        let _ = socket.write_all(call.as_bytes()).await;
        let mut answer = Vec::new();
        loop {
            let read = tokio::time::timeout(DEADLINE, socket.read_buf(&mut answer)).await.expect("an answer");
            if matches!(read, Ok(0) | Err(_)) {
                return Err(String::from_utf8(answer).unwrap());
            }
            // Only the operator has the permission; for others, the refusal shows that the connection was
            // accepted.
            let text = std::str::from_utf8(&answer).unwrap();
            if text.starts_with("HTTP/1.1 200") || text.contains("may not do what needs") {
                return Ok(socket);
            }
        }
    }

    async fn connections(&self, wanted: usize) {
        let open = async {
            while self.rig.front.connections() != wanted {
                tokio::task::yield_now().await;
            }
        };
        let is_so = tokio::time::timeout(DEADLINE, open).await;
        assert!(is_so.is_ok(), "{} are open, not {wanted}", self.rig.front.connections());
    }
}

async fn connect(rig: &Rig, host: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((IpAddr::from([127, 0, 0, host]), 0).into()).unwrap();
    socket.connect(rig.http_address).await.unwrap()
}

/// Advances the node's clock by `time` and a little more.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time + Duration::from_millis(10)).await;
    tokio::time::resume();
}

/// The limit of a client holds for connections from several addresses, with a call on each.
#[tokio::test]
async fn client_with_a_token_leaves_connections_to_others() {
    let callers = Callers::start().await;
    let mut open = Vec::new();
    for host in 1..=OF_CLIENT_HTTP {
        open.push(callers.call("shop", host).await.unwrap());
    }
    let refused = callers.call("shop", 1).await.unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains("shop has 8 connections for HTTP at this node"), "{refused}");
    assert!(refused.contains("--max-connections-per-client"), "{refused}");
    let recorded = callers.rig.front.callers.audit.recent(None, 10, None).records;
    let refusals: Vec<_> =
        recorded.iter().filter(|it| it.result == "refused" && it.what != "denied").collect();
    assert!(matches!(refusals[..], [it] if it.what == "quota" && it.identity == "shop"), "{refusals:?}");
    open.push(callers.call("stock", 1).await.unwrap());
    // Closed connections make room.
    open.truncate(open.len() - 2);
    callers.connections(open.len()).await;
    open.push(callers.call("shop", 1).await.unwrap());
}

#[tokio::test]
async fn operator_gets_a_connection_while_clients_have_all() {
    let callers = Callers::start().await;
    let mut open = Vec::new();
    for host in 1..=HTTP {
        let who = if host <= OF_CLIENT_HTTP { "shop" } else { "stock" };
        open.push(callers.call(who, host).await.unwrap());
    }
    let refused = callers.call("stock", HTTP + 1).await.unwrap_err();
    assert!(
        refused.contains("429") && refused.contains("this node has 16 connections for HTTP"),
        "{refused}"
    );
    let operators = [callers.call("ops", 1).await.unwrap()];
    // One identity gets at most half of the reserved connections.
    let refused = callers.call("ops", 1).await.unwrap_err();
    assert!(refused.contains("of those kept for operators none is free"), "{refused}");
    drop((open, operators));
    callers.connections(0).await;
}

/// A host that sends nothing on its connections can't be told from an operator, so its connections wait.
#[tokio::test]
async fn silent_connections_of_one_network_keep_no_other_network_out() {
    let callers = Callers::start().await;
    let mut silent = Vec::new();
    for _ in 0..3 * HTTP {
        silent.push(connect(&callers.rig, 1).await);
    }
    // Half of the connections of the HTTP port, and one of those that wait.
    callers.connections(usize::from(OF_CLIENT_HTTP) + 1).await;
    callers.call("shop", 2).await.unwrap();
}

#[tokio::test]
async fn connections_of_a_revoked_caller_close_at_the_reload() {
    let callers = Callers::start().await;
    let mut revoked = callers.call("shop", 1).await.unwrap();
    let _other = callers.call("stock", 1).await.unwrap();
    let permissions = format!("revoked = [\"shop\"]\n{PERMISSIONS}");
    std::fs::write(callers.folder.path().join("permissions"), permissions).unwrap();
    assert!(callers.rig.front.callers.access.reload().unwrap());
    callers.rig.front.end_denied();
    callers.connections(1).await;
    assert_eq!(revoked.read(&mut [0]).await.unwrap(), 0);
    let refused = callers.call("shop", 1).await.unwrap_err();
    assert!(refused.contains("403") && refused.contains("shop may do nothing: it is revoked"), "{refused}");
}

#[tokio::test]
async fn call_of_a_revoked_caller_ends_at_the_reload_with_the_reason() {
    let mut callers = Callers::start().await;
    callers.rig.outbox.put(&mut Vec::new(), ReplicaStatus::Ready);
    let mut socket = connect(&callers.rig, 1).await;
    let call = format!(
        "POST /v1/sessions/1/keep-alive HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         lockkeeper-secret: 07070707070707070707070707070707\r\ncontent-length: 0\r\n\r\n",
        callers.tokens[0].1
    );
    socket.write_all(call.as_bytes()).await.unwrap();
    // The first event has the quotas of the files.
    let events = callers.rig.events(2).await;
    assert!(matches!(&events[1], Event::Called(_, it) if &*it.identity == "shop"), "{events:?}");
    std::fs::write(callers.folder.path().join("permissions"), "revoked = [\"shop\"]\n").unwrap();
    assert!(callers.rig.front.callers.access.reload().unwrap());
    callers.rig.front.end_denied();
    let mut answer = String::new();
    let read = tokio::time::timeout(DEADLINE, socket.read_to_string(&mut answer));
    read.await.expect("the connection closes").unwrap();
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("it is revoked"), "{answer}");
    let events = callers.rig.events(3).await;
    assert!(matches!(events.last(), Some(Event::CallDropped(_))), "{events:?}");
}

#[tokio::test]
async fn idle_connection_closes_after_a_bound_and_earlier_if_there_is_no_place() {
    let callers = Callers::start().await;
    let _idle = callers.call("shop", 1).await.unwrap();
    pass(LIMITS.idle_timeout).await;
    callers.connections(0).await;
    let mut open = Vec::new();
    for _ in 0..OF_CLIENT_HTTP {
        open.push(callers.call("shop", 1).await.unwrap());
    }
    pass(Duration::from_secs(6)).await;
    assert_eq!(callers.rig.front.connections(), open.len());
    // The new connection waits until the others have closed.
    let _new = callers.call("stock", 1).await.unwrap();
    callers.connections(1).await;
}

/// On the gRPC port. A stream that has sent something is checked by the replica, which knows whether the
/// stream has a session.
#[tokio::test]
async fn silent_stream_is_reported_and_a_connection_without_calls_closes() {
    local(async {
        let mut rig = Rig::start().await;
        let mut client = Client::connect(rig.address).await;
        client.keep_alive(7);
        rig.events(2).await;
        let idle = rig.front.transport.limits.idle_timeout;
        pass(idle).await;
        assert!(matches!(rig.events(3).await[2], Event::StreamSilent(_)));
        client.stream.send_data(Bytes::new(), true).unwrap();
        rig.events(4).await;
        pass(idle / 2).await;
        assert_eq!(rig.front.connections(), 1);
        pass(idle).await;
        let closed = async {
            while rig.front.connections() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, closed).await.expect("it closes");
    })
    .await;
}
