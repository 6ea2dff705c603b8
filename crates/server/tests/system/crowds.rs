//! A client with very many requests: as long as it stays within the limits of a session, all its requests are
//! answered, and it is never disconnected because there are so many.

use lockkeeper_wire::v1::{self, client_item, server_item::What};
use tonic::transport::Channel;

use crate::harness::{Client, DEADLINE, SECRET, Server, acquire, directory};

/// The number of waiters.
const CROWD: u64 = 100_000;
/// The number of waiters whose wait ends while their client is disconnected.
const WAITS: u64 = 20_000;
/// After an attach, the server sends at most this many unconfirmed ends of requests at once, and the next
/// ones when the client has confirmed the last of these.
const PART: usize = 1024;
/// The number of items in a frame of these tests.
const FRAME: usize = 10_000;

fn item(session: u64, what: client_item::What) -> v1::ClientItem {
    v1::ClientItem { session, what: Some(what) }
}

/// Sends `count` requests that wait for `a`.
fn send_waits(client: &Client, session: u64, count: u64, at_most_ms: Option<u64>) {
    let waits: Vec<v1::ClientItem> = (1..=count)
        .map(|seq| {
            let acquire = v1::Acquire { at_most_ms, ..acquire(seq, "a", true) };
            item(session, client_item::What::Acquire(acquire))
        })
        .collect();
    waits.chunks(FRAME).for_each(|frame| client.send_all(frame.to_vec()));
}

/// Reads the answers to all requests; some may have ended already.
async fn read_queued(client: &mut Client, count: u64) {
    let mut queued = 0;
    while queued < count {
        match client.what().await {
            What::Queued(_) => queued += 1,
            What::Ended(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn attach(server: &Server, session: u64, attach: u64) -> Client {
    let client = Client::connect(server).await;
    let attach = v1::AttachSession { secret: SECRET.to_vec(), attach };
    client.send(session, client_item::What::Attach(attach));
    client
}

async fn attached(client: &mut Client) {
    let first = client.what().await;
    assert!(matches!(first, What::Attached(_)), "the attach is confirmed first: {first:?}");
}

async fn waiters(calls: &mut v1::lockkeeper_client::LockkeeperClient<Channel>) -> u64 {
    let describe = v1::DescribeRequest { name: "a".to_owned(), ..v1::DescribeRequest::default() };
    calls.describe(describe).await.unwrap().into_inner().lock.map_or(0, |lock| lock.waiter_count)
}

#[tokio::test]
async fn all_waiters_of_a_large_session_can_be_retried_after_an_attach() {
    let data = directory();
    let server = Server::start(data.path());
    let mut holder = Client::connect(&server).await;
    let other = holder.open([8; 16], "holder").await;
    holder.hold(other, 1, "a").await;
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "crowd").await;
    send_waits(&client, session, CROWD, None);
    read_queued(&mut client, CROWD).await;
    drop(client);

    let mut client = attach(&server, session, 2).await;
    attached(&mut client).await;
    send_waits(&client, session, CROWD, None);
    read_queued(&mut client, CROWD).await;
    assert_eq!(waiters(&mut server.calls().await).await, CROWD);
    server.stop().await.unwrap();
}

/// An end that the client did not request is kept until the client confirms it. When the client attaches
/// again, the server sends all ends that are still unconfirmed.
#[tokio::test]
async fn ends_during_a_disconnect_are_sent_in_parts_after_the_attach() {
    let data = directory();
    let server = Server::start(data.path());
    let mut holder = Client::connect(&server).await;
    let other = holder.open([8; 16], "holder").await;
    holder.hold(other, 1, "a").await;
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "crowd").await;
    // Each wait ends after 5 s, which is long enough for all requests to queue first. If waits ended earlier,
    // their unconfirmed ends would reach the limit of kept answers, and later requests would be refused (M1).
    send_waits(&client, session, WAITS, Some(5_000));
    read_queued(&mut client, WAITS).await;
    drop(client);
    let mut calls = server.calls().await;
    let all_over = async { while waiters(&mut calls).await > 0 {} };
    tokio::time::timeout(DEADLINE, all_over).await.expect("all waits are over");

    let mut client = attach(&server, session, 2).await;
    attached(&mut client).await;
    let (mut ended, mut unconfirmed) = (0, Vec::new());
    while ended < WAITS {
        let told = client.item().await.expect("the stream is open");
        match told.what {
            Some(What::Finished(_)) => continue,
            Some(What::Ended(_)) => unconfirmed.push(told.seq),
            other => panic!("{other:?}"),
        }
        ended += 1;
        assert!(unconfirmed.len() <= PART, "more ends than one part");
        if unconfirmed.len() == PART || ended == WAITS {
            let finish = |target| v1::Finish { seq: WAITS + target, target, done_through: 0 };
            let finishes =
                unconfirmed.drain(..).map(|seq| item(session, client_item::What::Finish(finish(seq))));
            client.send_all(finishes.collect());
        }
    }
    server.stop().await.unwrap();
}
