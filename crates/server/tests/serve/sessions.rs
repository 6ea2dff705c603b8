//! Sessions as a client sees them.

use lockkeeper_wire::v1::{self, client_item, server_item::What};

use crate::harness::{Client, SECRET, Server, directory};

#[tokio::test]
async fn a_lock_is_granted_queued_handed_over_and_finished() {
    let data = directory();
    let server = Server::start(data.path());
    let (mut alice, mut bob) = (Client::connect(&server).await, Client::connect(&server).await);
    let first = alice.open([1; 16], "alice").await;
    let second = bob.open([2; 16], "bob").await;
    let token = alice.hold(first, 1, "orders/42").await;

    bob.acquire(second, 1, "orders/42", false);
    match bob.what().await {
        What::Busy(busy) => assert_eq!((busy.holder, busy.holder_label.as_str()), (first, "alice")),
        other => panic!("{other:?}"),
    }
    bob.acquire(second, 2, "orders/42", true);
    assert!(matches!(bob.what().await, What::Queued(v1::Queued { position: 0, .. })));
    alice.finish(first, 2, 1);
    let finished = alice.what().await;
    assert!(matches!(&finished, What::Finished(it) if it.end() == v1::End::Released), "{finished:?}");
    assert!(bob.granted().await > token, "tokens rise (P2)");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_keep_alive_is_acknowledged_with_its_own_number() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "").await;
    client.send(session, client_item::What::KeepAlive(v1::KeepAlive { id: 77 }));
    assert!(matches!(client.what().await, What::KeptAlive(v1::KeptAlive { id: 77, .. })));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn holds_and_tokens_survive_a_restart_and_an_attach_needs_the_secret() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "survivor").await;
    let token = client.hold(session, 1, "a").await;
    server.stop().await.unwrap();

    let server = Server::start(data.path());
    let describe = v1::DescribeRequest { name: "a".to_owned(), ..v1::DescribeRequest::default() };
    let lock = server.calls().await.describe(describe).await.unwrap().into_inner().lock.unwrap();
    assert_eq!((lock.holds[0].token, lock.holds[0].label.as_str()), (token, "survivor"));

    let mut client = Client::connect(&server).await;
    let attach = |secret: [u8; 16]| {
        client_item::What::Attach(v1::AttachSession { secret: secret.to_vec(), attach: 2 })
    };
    client.send(session, attach([9; 16]));
    let refused = client.what().await;
    assert!(matches!(&refused, What::Refused(it) if it.text.contains("secret")), "{refused:?}");
    client.acquire(session, 2, "b", false);
    let refused = client.what().await;
    assert!(matches!(&refused, What::Refused(it) if it.text.contains("not attached")), "{refused:?}");

    client.send(session, attach(SECRET));
    assert!(matches!(client.what().await, What::Attached(v1::Attached { attach: 2, .. })));
    assert!(client.hold(session, 3, "b").await > token, "tokens rise (P2)");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn after_its_data_were_wiped_a_node_grants_higher_tokens() {
    let mut last = 0;
    for _ in 0..2 {
        let data = directory();
        let server = Server::start(data.path());
        let mut client = Client::connect(&server).await;
        let session = client.open(SECRET, "").await;
        let token = client.hold(session, 1, "a").await;
        assert!(token > last, "{token} follows {last} (T1)");
        last = token;
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn session_without_keep_alives_expires_and_its_lock_is_granted_to_the_next_waiter() {
    let data = directory();
    let server = Server::start(data.path());
    let (mut silent, mut next) = (Client::connect(&server).await, Client::connect(&server).await);
    let open =
        v1::OpenSession { secret: vec![1; 16], ttl_ms: 1_000, attach: 1, ..v1::OpenSession::default() };
    silent.send(0, client_item::What::Open(open));
    let session = silent.item().await.unwrap().session;
    let token = silent.hold(session, 1, "a").await;

    let waiting = next.open([2; 16], "").await;
    next.acquire(waiting, 1, "a", true);
    assert!(matches!(next.what().await, What::Queued(_)));
    // The silent client's stream and connection are open: only its keep-alives are missing.
    assert!(next.granted().await > token);
    assert!(matches!(silent.what().await, What::SessionGone(_)));
    server.stop().await.unwrap();
}
