//! Sessions without a stream: each request is a call.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_rig::Port;
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use lockkeeper_wire::v1::{self, client_item, server_item::What};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::harness::{Client, DEADLINE, SECRET, Server, acquire, directory, start_cluster};

/// A client that calls one node.
#[derive(Clone)]
struct CallingClient {
    calls: LockkeeperClient<Channel>,
    secret: [u8; 16],
    session: u64,
    token: Option<String>,
}

impl CallingClient {
    async fn new(server: &Server, secret: [u8; 16]) -> Self {
        Self { calls: server.calls().await, secret, session: 0, token: None }
    }

    async fn open(server: &Server, secret: [u8; 16], ttl_ms: u64) -> Self {
        let mut caller = Self::new(server, secret).await;
        caller.open_session(ttl_ms).await;
        caller
    }

    async fn open_session(&mut self, ttl_ms: u64) {
        let open = v1::OpenSession { secret: self.secret.to_vec(), ttl_ms, ..v1::OpenSession::default() };
        let answer = self.ask(0, client_item::What::Open(open), 0).await.unwrap();
        let item = answer.item.unwrap();
        assert!(matches!(item.what, Some(What::Opened(_))), "{item:?}");
        self.session = item.session;
    }

    async fn ask(
        &self,
        session: u64,
        what: client_item::What,
        poll_ms: u64,
    ) -> Result<v1::SessionCallResponse, Status> {
        let item = v1::ClientItem { session, what: Some(what) };
        let secret = self.secret.to_vec();
        let asked = v1::SessionCallRequest { secret, item: Some(item), poll_ms, ..Default::default() };
        let mut request = Request::new(asked);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        Ok(self.calls.clone().session_call(request).await?.into_inner())
    }

    async fn what(&self, what: client_item::What, poll_ms: u64) -> What {
        self.ask(self.session, what, poll_ms).await.unwrap().item.unwrap().what.unwrap()
    }

    async fn acquire(&self, seq: u64, name: &str, poll_ms: u64) -> What {
        self.what(client_item::What::Acquire(acquire(seq, name, true)), poll_ms).await
    }

    async fn finish(&self, seq: u64, target: u64) -> v1::End {
        let finish = v1::Finish { seq, target, done_through: 0 };
        match self.what(client_item::What::Finish(finish), 0).await {
            What::Finished(it) => it.end(),
            other => panic!("the request was to end: {other:?}"),
        }
    }

    async fn keep_alive(&self) -> What {
        self.what(client_item::What::KeepAlive(v1::KeepAlive { id: 0 }), 0).await
    }
}

fn token(what: &What) -> u64 {
    match what {
        What::Granted(it) => it.token,
        other => panic!("the lock was to be granted: {other:?}"),
    }
}

/// Waits until `name` has so many waiters.
async fn until_waiting(server: &Server, name: &str, waiters: u64) {
    let until = Instant::now() + DEADLINE;
    loop {
        let asked = v1::DescribeRequest { name: name.to_owned(), ..v1::DescribeRequest::default() };
        let lock = server.calls().await.describe(asked).await.unwrap().into_inner().lock.unwrap();
        if lock.waiter_count >= waiters {
            return;
        }
        assert!(Instant::now() < until, "{lock:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn lock_is_acquired_waited_for_and_released_by_calls() {
    let data = directory();
    let server = Server::start(data.path());
    let holder = CallingClient::open(&server, SECRET, 30_000).await;
    let waiter = CallingClient::open(&server, [8; 16], 30_000).await;
    let first = token(&holder.acquire(1, "a", 0).await);
    assert!(matches!(waiter.acquire(1, "a", 0).await, What::Queued(_)), "it is told at once");
    let begun = Instant::now();
    assert!(matches!(waiter.acquire(1, "a", 200).await, What::Queued(_)));
    assert!(begun.elapsed() >= Duration::from_millis(200));
    let polls = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.acquire(1, "a", 20_000).await }
    });
    // Other calls of the session meanwhile: they take nothing from the one that waits.
    for _ in 0..10 {
        assert!(matches!(waiter.keep_alive().await, What::KeptAlive(_)));
    }
    let other = token(&waiter.acquire(2, "b", 0).await);
    assert_eq!(holder.finish(2, 1).await, v1::End::Released);
    let second = token(&polls.await.unwrap());
    assert!(first < other && other < second);
    assert_eq!(token(&waiter.acquire(1, "a", 0).await), second, "a repetition gets the same grant (P7)");
    assert_eq!(waiter.finish(3, 1).await, v1::End::Released);
    assert!(matches!(
        waiter.what(client_item::What::Close(v1::CloseSession {}), 0).await,
        What::SessionGone(_)
    ));
    assert!(matches!(waiter.keep_alive().await, What::SessionGone(_)));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn call_whose_answer_is_lost_leaves_no_second_session_and_no_second_hold() {
    let data = directory();
    let server = Server::start(data.path());
    let mut caller = CallingClient::open(&server, SECRET, 30_000).await;
    let session = caller.session;
    caller.open_session(30_000).await;
    assert_eq!(caller.session, session);
    let holder = CallingClient::open(&server, [8; 16], 30_000).await;
    token(&holder.acquire(1, "a", 0).await);
    let lost = tokio::spawn({
        let caller = caller.clone();
        async move { caller.acquire(1, "a", 20_000).await }
    });
    until_waiting(&server, "a", 1).await;
    lost.abort();
    assert!(lost.await.unwrap_err().is_cancelled());
    assert_eq!(holder.finish(2, 1).await, v1::End::Released);
    let granted = token(&caller.acquire(1, "a", 0).await);
    assert_eq!(token(&caller.acquire(1, "a", 0).await), granted);
    assert_eq!(caller.finish(2, 1).await, v1::End::Released);
    assert_eq!(caller.finish(2, 1).await, v1::End::Released, "so does a repeated release");
    server.stop().await.unwrap();
}

/// An `open` that is repeated while a request of the session waits takes nothing from it.
#[tokio::test]
async fn repeated_open_leaves_calls_in_progress_as_they_are() {
    let data = directory();
    let server = Server::start(data.path());
    let holder = CallingClient::open(&server, [8; 16], 30_000).await;
    token(&holder.acquire(1, "a", 0).await);
    let caller = CallingClient::open(&server, SECRET, 30_000).await;
    let polls = tokio::spawn({
        let caller = caller.clone();
        async move { caller.acquire(1, "a", 20_000).await }
    });
    until_waiting(&server, "a", 1).await;
    let again = CallingClient::open(&server, SECRET, 30_000).await;
    assert_eq!(again.session, caller.session);
    assert!(matches!(again.keep_alive().await, What::KeptAlive(_)));
    token(&again.acquire(2, "b", 0).await);
    let other = CallingClient { session: caller.session + 7, ..again };
    assert!(
        matches!(other.keep_alive().await, What::SessionGone(_)),
        "it has the secret, but not the session"
    );
    assert_eq!(holder.finish(2, 1).await, v1::End::Released);
    token(&polls.await.unwrap());
    server.stop().await.unwrap();
}

/// A caller without the secret can't use the session, and its call ends no call of the session's client.
#[tokio::test]
async fn wrong_secret_is_refused_also_while_the_session_has_a_stream() {
    let data = directory();
    let server = Server::start(data.path());
    let holder = CallingClient::open(&server, [8; 16], 30_000).await;
    token(&holder.acquire(1, "a", 0).await);
    let owner = CallingClient::open(&server, SECRET, 30_000).await;
    let polls = tokio::spawn({
        let owner = owner.clone();
        async move { owner.acquire(1, "a", 20_000).await }
    });
    until_waiting(&server, "a", 1).await;
    let thief = CallingClient { secret: [9; 16], ..owner.clone() };
    let close = client_item::What::Close(v1::CloseSession {});
    let leave = client_item::What::Finish(v1::Finish { seq: 2, target: 1, done_through: 0 });
    for what in [close, leave, client_item::What::KeepAlive(v1::KeepAlive { id: 0 })] {
        match thief.what(what, 0).await {
            What::Refused(it) => assert!(it.text.contains("secret"), "{it:?}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(!polls.is_finished());
    holder.finish(2, 1).await;
    token(&polls.await.unwrap());
    server.stop().await.unwrap();
}

#[tokio::test]
async fn session_lives_as_long_as_it_is_called_and_a_ttl_longer() {
    let data = directory();
    let server = Server::start(data.path());
    let caller = CallingClient::open(&server, SECRET, 1_000).await;
    token(&caller.acquire(1, "a", 0).await);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert!(matches!(caller.keep_alive().await, What::KeptAlive(_)));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let next = CallingClient::open(&server, [8; 16], 30_000).await;
    token(&next.acquire(1, "a", 20_000).await);
    assert!(matches!(caller.keep_alive().await, What::SessionGone(_)));
    server.stop().await.unwrap();
}

/// The stream that the session's calls have shared is still open, and the session is no longer attached to
/// it.
#[tokio::test]
async fn calls_go_on_after_another_stream_has_had_the_session() {
    let data = directory();
    let server = Server::start(data.path());
    let caller = CallingClient::open(&server, SECRET, 30_000).await;
    assert!(matches!(caller.keep_alive().await, What::KeptAlive(_)));
    // The numbers of the attaches by calls are low at first, and rise with every call of anybody.
    const ATTACH: u64 = 100;
    let mut stream = Client::connect(&server).await;
    let attach = v1::AttachSession { secret: SECRET.to_vec(), attach: ATTACH };
    stream.send(caller.session, client_item::What::Attach(attach));
    assert!(matches!(stream.what().await, What::Attached(_)));
    drop(stream);
    let other = CallingClient::open(&server, [8; 16], 30_000).await;
    for _ in 0..ATTACH {
        assert!(matches!(other.keep_alive().await, What::KeptAlive(_)));
    }
    assert!(matches!(caller.keep_alive().await, What::KeptAlive(_)));
    token(&caller.acquire(1, "a", 0).await);
    server.stop().await.unwrap();
}

/// The calls share a stream all the time, so an end that happens meanwhile is sent once, and this node has to
/// remember it.
#[tokio::test]
async fn request_that_has_ended_is_named_until_a_finish_confirms_it() {
    let data = directory();
    let server = Server::start(data.path());
    let holder = CallingClient::open(&server, [8; 16], 30_000).await;
    token(&holder.acquire(1, "b", 0).await);
    let caller = CallingClient::open(&server, SECRET, 30_000).await;
    let held = token(&caller.acquire(1, "a", 0).await);
    let polls = {
        let caller = caller.clone();
        tokio::spawn(async move { caller.acquire(2, "b", 20_000).await })
    };
    until_waiting(&server, "b", 1).await;
    let reason = "stuck".to_owned();
    let order =
        v1::BreakRequest { name: "a".to_owned(), token: held, reason, now: true, ..Default::default() };
    server.calls().await.r#break(order).await.unwrap();
    let ended = async || {
        let keep_alive = client_item::What::KeepAlive(v1::KeepAlive { id: 0 });
        caller.ask(caller.session, keep_alive, 0).await.unwrap().ended
    };
    let broken = [v1::EndedRequest { seq: 1, end: v1::End::Broken.into() }];
    assert_eq!(ended().await, broken);
    assert!(
        matches!(caller.acquire(1, "a", 0).await, What::Finished(_)),
        "it is repeated, and confirms nothing"
    );
    assert_eq!(ended().await, broken);
    assert_eq!(caller.finish(3, 1).await, v1::End::Broken);
    assert_eq!(ended().await, []);
    assert!(!polls.is_finished());
    holder.finish(2, 1).await;
    token(&polls.await.unwrap());
    server.stop().await.unwrap();
}

#[tokio::test]
async fn call_that_is_none_is_refused_in_words() {
    let data = directory();
    let server = Server::start(data.path());
    let caller = CallingClient::open(&server, SECRET, 30_000).await;
    let refused = async |session, what, poll| {
        let status = caller.ask(session, what, poll).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        status.message().to_owned()
    };
    let keep_alive = || client_item::What::KeepAlive(v1::KeepAlive { id: 0 });
    assert!(refused(caller.session, keep_alive(), 60_001).await.contains("60001"));
    let attach = v1::AttachSession { secret: SECRET.to_vec(), attach: 1 };
    assert!(refused(caller.session, client_item::What::Attach(attach), 0).await.contains("attach"));
    let lingers = v1::OpenSession {
        secret: SECRET.to_vec(),
        ttl_ms: 30_000,
        linger_ms: 5,
        ..v1::OpenSession::default()
    };
    assert!(refused(0, client_item::What::Open(lingers), 0).await.contains("linger"));
    let short = CallingClient { secret: SECRET, ..caller.clone() };
    let item = v1::ClientItem { session: caller.session, what: Some(keep_alive()) };
    let asked = v1::SessionCallRequest { secret: vec![1, 2, 3], item: Some(item), ..Default::default() };
    let status = short.calls.clone().session_call(asked).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(matches!(caller.keep_alive().await, What::KeptAlive(_)), "the session is as before");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn call_needs_the_permission_for_the_lock() {
    const PERMISSIONS: &str = "[[allow]]\nwho = [\"shop\"]\nactions = [\"acquire\"]\nnames = [\"orders\"]\n";
    let (data, files) = (directory(), directory());
    let (server, [shop]) = Server::start_for(data.path(), files.path(), ["shop"], Some(PERMISSIONS));
    let mut caller = CallingClient { token: Some(shop), ..CallingClient::new(&server, SECRET).await };
    caller.open_session(30_000).await;
    token(&caller.acquire(1, "orders/1", 0).await);
    let other = client_item::What::Acquire(acquire(2, "payments/1", true));
    let status = caller.ask(caller.session, other, 0).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    let anonymous = CallingClient { token: None, ..caller.clone() };
    let status = anonymous.ask(caller.session, client_item::What::Close(v1::CloseSession {}), 0).await;
    assert_eq!(status.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(caller.finish(3, 1).await, v1::End::Released);
    server.stop().await.unwrap();
}

/// A node accepts 256 calls at once on a connection, of another node's too.
#[tokio::test]
async fn crowd_that_waits_at_a_follower_delays_no_other_call() {
    const WAITERS: u64 = 300;
    let ports = [1, 2, 3].map(|node| (node, Port::free()));
    let cluster: BTreeMap<u64, String> =
        ports.iter().map(|(node, port)| (*node, format!("127.0.0.1:{}", port.number()))).collect();
    let nodes = start_cluster(ports, &cluster).await;
    let status = nodes[&1].calls().await.status(v1::StatusRequest { node: 0 }).await.unwrap().into_inner();
    let follower = &nodes[nodes.keys().find(|node| **node != status.leader).unwrap()];
    let holder = CallingClient::open(follower, SECRET, 30_000).await;
    let all = v1::Acquire { subtree: true, ..acquire(1, "a", false) };
    token(&holder.what(client_item::What::Acquire(all), 0).await);
    let mut polls = tokio::task::JoinSet::new();
    for part in 0..3 {
        // Of a connection of its own.
        let calls = follower.calls().await;
        for number in part * WAITERS / 3..(part + 1) * WAITERS / 3 {
            let secret = (u128::from(number) + 1).to_be_bytes();
            let mut waiter = CallingClient { calls: calls.clone(), secret, session: 0, token: None };
            polls.spawn(async move {
                waiter.open_session(60_000).await;
                waiter.acquire(1, &format!("a/{number}"), 15_000).await
            });
        }
    }
    let until = Instant::now() + DEADLINE;
    loop {
        let asked = v1::ListSessionsRequest { page_size: 1_000, after: holder.session };
        let sessions = nodes[&status.leader].calls().await.list_sessions(asked).await.unwrap().into_inner();
        if sessions.sessions.iter().map(|it| it.requests).sum::<u64>() == WAITERS {
            break;
        }
        assert!(Instant::now() < until, "{sessions:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(matches!(holder.keep_alive().await, What::KeptAlive(_)));
    assert!(polls.try_join_next().is_none(), "all of them still wait");
    assert_eq!(holder.finish(3, 1).await, v1::End::Released);
    while let Some(poll) = polls.join_next().await {
        token(&poll.unwrap());
    }
    for server in nodes.into_values() {
        server.stop().await.unwrap();
    }
}

/// Any node answers, and a request that waits goes on at the next leader.
#[tokio::test]
async fn calls_go_through_followers_and_survive_a_change_of_leader() {
    let ports = [1, 2, 3].map(|node| (node, Port::free()));
    let cluster: BTreeMap<u64, String> =
        ports.iter().map(|(node, port)| (*node, format!("127.0.0.1:{}", port.number()))).collect();
    let nodes = start_cluster(ports, &cluster).await;
    let mut callers = Vec::new();
    let mut first = CallingClient::open(&nodes[&1], SECRET, 30_000).await;
    for server in nodes.values() {
        first.calls = server.calls().await;
        callers.push(first.clone());
    }
    let held = token(&callers[0].acquire(1, "a", 0).await);
    for caller in &callers {
        assert_eq!(token(&caller.acquire(1, "a", 0).await), held);
        assert!(matches!(caller.keep_alive().await, What::KeptAlive(_)));
    }
    let waiter = CallingClient::open(&nodes[&2], [8; 16], 30_000).await;
    let mut polls = Vec::new();
    for server in nodes.values() {
        let waiter = CallingClient { calls: server.calls().await, ..waiter.clone() };
        polls.push(tokio::spawn(async move { waiter.acquire(1, "a", 20_000).await }));
    }
    until_waiting(&nodes[&1], "a", 1).await;
    nodes[&3].calls().await.transfer(v1::TransferRequest::default()).await.unwrap();
    assert_eq!(callers[2].finish(2, 1).await, v1::End::Released);
    let mut granted = Vec::new();
    for poll in polls {
        granted.push(token(&poll.await.unwrap()));
    }
    assert!(granted[0] > held && granted.iter().all(|it| *it == granted[0]), "{granted:?}");
    for server in nodes.into_values() {
        server.stop().await.unwrap();
    }
}
