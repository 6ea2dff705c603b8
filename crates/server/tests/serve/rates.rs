//! A client that makes more requests in a second than it may, on the stream of its session.

use lockkeeper_wire::v1::{self, client_item, server_item::What};
use tempfile::TempDir;

use crate::harness::{Client, SECRET, Server, acquire, directory};

const PERMISSIONS: &str = r#"
[[allow]]
who = ["shop"]
actions = ["acquire"]
names = ["*"]

[[quota]]
who = ["shop"]
requests-per-second = 1
"#;

/// Far more than the rate allows while they are read.
const MANY: u64 = 200;

/// A node at which the caller of the token may make one request in a second.
fn limited() -> (Server, String, [TempDir; 2]) {
    let (data, files) = (directory(), directory());
    let (server, [token]) = Server::start_for(data.path(), files.path(), ["shop"], Some(PERMISSIONS));
    (server, token, [data, files])
}

fn item(session: u64, what: client_item::What) -> v1::ClientItem {
    v1::ClientItem { session, what: Some(what) }
}

fn wants(session: u64, seqs: std::ops::RangeInclusive<u64>) -> Vec<v1::ClientItem> {
    let one = |seq| item(session, client_item::What::Acquire(acquire(seq, &format!("n{seq}"), false)));
    seqs.map(one).collect()
}

/// The answers to so many requests: those that are refusals of the rate, and the others.
async fn answers(client: &mut Client, count: u64) -> (Vec<v1::ServerItem>, Vec<v1::ServerItem>) {
    let (mut refused, mut others) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let item = client.item().await.expect("the stream is open");
        match &item.what {
            Some(What::Refused(it)) => {
                assert_eq!(it.code(), v1::RefusedCode::Limit, "{item:?}");
                assert!(it.text.contains("shop may ask for 1 things a second"), "{item:?}");
                refused.push(item);
            }
            _ => others.push(item),
        }
    }
    (refused, others)
}

fn open(secret: [u8; 16], attach: u64) -> client_item::What {
    client_item::What::Open(v1::OpenSession {
        secret: secret.to_vec(),
        ttl_ms: 30_000,
        attach,
        ..v1::OpenSession::default()
    })
}

#[tokio::test]
async fn acquires_and_new_sessions_above_the_rate_are_refused() {
    let (server, token, _kept) = limited();
    let mut client = Client::connect_as(server.running.address(), Some(&token)).await;
    let session = client.open(SECRET, "shop").await;
    client.send_all(wants(session, 1..=MANY));
    let (refused, granted) = answers(&mut client, MANY).await;
    // Each second of the test's own slowness allows one more.
    assert!(refused.len() > granted.len(), "{} were granted", granted.len());
    let mut opens = Vec::new();
    for number in 0..MANY {
        let mut secret = SECRET;
        secret[..8].copy_from_slice(&(number + 1_000).to_le_bytes());
        opens.push(item(0, open(secret, 1)));
    }
    client.send_all(opens);
    let (refused, opened) = answers(&mut client, MANY).await;
    assert!(refused.len() > opened.len(), "{} were opened", opened.len());
    let prefixes: Vec<u64> = refused
        .iter()
        .map(|item| match &item.what {
            Some(What::Refused(it)) => it.secret_prefix,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(prefixes.iter().all(|prefix| *prefix >= 1_000), "each says which one it is: {prefixes:?}");
    server.stop().await.unwrap();
}

/// Its session lives on: a stream can be opened, and a session attached, kept alive and found again, and a
/// hold released.
#[tokio::test]
async fn session_is_kept_and_its_holds_released_whatever_the_rate_is() {
    let (server, token, _kept) = limited();
    let address = server.running.address();
    let mut first = Client::connect_as(address, Some(&token)).await;
    let session = first.open(SECRET, "shop").await;
    let mut seq = 0;
    let held = loop {
        seq += 1;
        first.acquire(session, seq, "held", false);
        if let What::Granted(_) = first.what().await {
            break seq;
        }
    };
    for attach in 2..6 {
        let mut client = Client::connect_as(address, Some(&token)).await;
        let attached = client_item::What::Attach(v1::AttachSession { secret: SECRET.to_vec(), attach });
        let alive = client_item::What::KeepAlive(v1::KeepAlive { id: attach });
        let again = client_item::What::Acquire(acquire(held, "held", false));
        let rest = wants(session, seq + 1..=seq + MANY);
        // Its rate is used up before the requests that must not be refused are read.
        let mut items = vec![item(session, attached)];
        items.extend(rest);
        items.extend([item(session, alive), item(session, again), item(0, open(SECRET, attach))]);
        seq += MANY;
        let count = items.len() as u64;
        client.send_all(items);
        let (_, others) = answers(&mut client, count).await;
        let said = |it: fn(&What) -> bool| others.iter().any(|item| item.what.as_ref().is_some_and(it));
        assert!(said(|what| matches!(what, What::Attached(_))), "{others:?}");
        assert!(said(|what| matches!(what, What::KeptAlive(_))), "{others:?}");
        assert!(said(|what| matches!(what, What::Opened(_))), "{others:?}");
        let granted =
            others.iter().any(|item| item.seq == held && matches!(item.what, Some(What::Granted(_))));
        assert!(granted, "the answer of the first acquire: {others:?}");
    }
    let mut last = Client::connect_as(address, Some(&token)).await;
    let attach = v1::AttachSession { secret: SECRET.to_vec(), attach: 7 };
    last.send(session, client_item::What::Attach(attach));
    assert!(matches!(last.what().await, What::Attached(_)));
    let finish = v1::Finish { seq: seq + MANY + 1, target: held, done_through: 0 };
    let mut items = wants(session, seq + 1..=seq + MANY);
    items.push(item(session, client_item::What::Finish(finish)));
    last.send_all(items);
    let (_, others) = answers(&mut last, MANY + 1).await;
    assert!(others.iter().any(|item| matches!(item.what, Some(What::Finished(_)))), "{others:?}");
    server.stop().await.unwrap();
}
