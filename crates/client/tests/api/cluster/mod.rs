//! Three nodes of the service: clients may connect to any of them, and the leader may stop.

mod nodes;

use std::time::Duration;

use lockkeeper::{LockName, Locks, TokenStatus, WatchEvent};
use lockkeeper_wire::v1::{self, watch_response::What};
use nodes::{DEADLINE, Nodes};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const SECOND: Duration = Duration::from_secs(1);

fn name(text: &str) -> LockName {
    text.parse().unwrap()
}

fn check(name: &str, token: u64) -> v1::CheckTokenRequest {
    v1::CheckTokenRequest { name: name.to_owned(), token }
}

/// Calls each follower by gRPC without the library, which would find the leader by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_answers_every_call_as_its_leader_does() {
    let nodes = Nodes::start();
    let leader = nodes.leader().await;
    let locks = nodes.client(leader).await;
    let held = locks.mutex("a/b").acquire().await.unwrap();
    let token = held.token_hint().unwrap().get();
    for node in nodes.others(leader) {
        let mut calls = nodes.calls(node).await;
        let status = calls.status(v1::StatusRequest { node: 0 }).await.unwrap().into_inner();
        assert_eq!(
            (status.role(), status.node),
            (v1::Role::Follower, node as u64 + 1),
            "this one is its own"
        );
        let asked = HealthCheckRequest { service: String::new() };
        let health = HealthClient::new(nodes.channel(node).await).check(asked).await.unwrap().into_inner();
        assert_eq!(health.status(), ServingStatus::Serving, "who hears a leader serves");

        let checked = calls.check_token(check("a/b", token)).await.unwrap().into_inner();
        assert_eq!(checked.status(), v1::TokenStatus::Current);
        let released = locks.mutex("gone").acquire().await.unwrap();
        let gone = released.token_hint().unwrap().get();
        released.release().await.unwrap();
        let checked = calls.check_token(check("gone", gone)).await.unwrap().into_inner();
        assert_eq!(checked.status(), v1::TokenStatus::NotCurrent, "as the leader knows it now");

        let asked =
            v1::DescribeRequest { name: "a/b".into(), waiters_max: 1, ..v1::DescribeRequest::default() };
        let lock = calls.describe(asked).await.unwrap().into_inner().lock.unwrap();
        assert_eq!(lock.holds[0].token, token);
        let asked = v1::ListRequest { prefix: "a".into(), ..v1::ListRequest::default() };
        assert_eq!(calls.list(asked).await.unwrap().into_inner().locks.len(), 1);
        let asked = v1::ListSessionsRequest::default();
        assert_eq!(calls.list_sessions(asked).await.unwrap().into_inner().sessions.len(), 1);

        let limit = v1::SetLimitRequest { name: "pool".into(), permits: Some(node as u32 + 1) };
        calls.set_limit(limit).await.unwrap();
        let asked =
            v1::DescribeRequest { name: "pool".into(), waiters_max: 1, ..v1::DescribeRequest::default() };
        let pool = calls.describe(asked).await.unwrap().into_inner().lock.unwrap();
        assert_eq!(pool.permits, Some(node as u32 + 1));

        let broken = locks.mutex("broken").acquire().await.unwrap();
        let order = v1::BreakRequest {
            name: "broken".into(),
            token: broken.token_hint().unwrap().get(),
            reason: "a test".into(),
            by: "a test".into(),
            now: true,
        };
        let done = calls.r#break(order).await.unwrap().into_inner();
        assert_eq!(done.result(), v1::BreakResult::Done);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_at_a_follower_sends_the_state_and_every_change() {
    let nodes = Nodes::start();
    let leader = nodes.leader().await;
    let locks = nodes.client(leader).await;
    let held = locks.mutex("w/a").acquire().await.unwrap();
    let mut calls = nodes.calls(nodes.others(leader)[0]).await;
    let mut watch = calls.watch(v1::WatchRequest { prefix: "w".into() }).await.unwrap().into_inner();
    let mut next = async || {
        let next = tokio::time::timeout(DEADLINE, watch.message()).await.expect("a word was due");
        next.unwrap().unwrap().what.unwrap()
    };
    assert!(matches!(next().await, What::State(lock) if lock.name == "w/a" && lock.holds.len() == 1));
    assert!(matches!(next().await, What::Synced(_)));
    held.release().await.unwrap();
    assert!(matches!(next().await, What::Changed(lock) if lock.name == "w/a" && lock.holds.is_empty()));
}

/// The client starts with one address. That node names the leader, and the leader reports the addresses of
/// all nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_a_follower_is_sufficient_for_a_client() {
    let nodes = Nodes::start();
    let follower = nodes.others(nodes.leader().await)[0];
    let locks = nodes.client(follower).await;
    let mut watch = locks.watch(Some("a")).unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    let token = held.token_hint().unwrap();
    assert_eq!(locks.check_token("a", token).await.unwrap(), TokenStatus::Current);
    assert_eq!(locks.list(None).await.unwrap().len(), 1);
    loop {
        let event = tokio::time::timeout(DEADLINE, watch.next()).await.expect("an event was due");
        if let Some(Ok(WatchEvent::State(lock) | WatchEvent::Changed(lock))) = event
            && lock.holds.iter().any(|holder| holder.token == Some(token))
        {
            break;
        }
    }
    held.release().await.unwrap();
}

/// P9, P7: while the leader stops, its clients move to another node, and calls to the other nodes are still
/// answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_leader_loses_no_hold_no_waiter_and_no_call() {
    let mut nodes = Nodes::start();
    let leader = nodes.leader().await;
    let [one, two] = nodes.others(leader)[..] else { panic!("there are three") };
    let (locks, others) = (nodes.client(one).await, nodes.client(leader).await);
    let held = locks.mutex("a").acquire().await.unwrap();
    let short = locks.mutex("b").linger(SECOND).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = others.mutex("a");
        async move { lock.acquire().await }
    });
    until_waiting(&locks, "a").await;
    let token = held.token_hint().unwrap().get();
    let mut calls = nodes.calls(two).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let asking = tokio::spawn(async move {
        let (mut stopped, mut begin, mut asked) = (stopped, Some(begin), 0_u32);
        loop {
            let checked = calls.check_token(check("a", token)).await.unwrap().into_inner();
            assert_eq!(checked.status(), v1::TokenStatus::Current);
            asked += 1;
            begin.take().map_or(Ok(()), |begin| begin.send(())).unwrap();
            if stopped.try_recv().is_ok() {
                return asked;
            }
        }
    });
    begun.await.unwrap();
    nodes.stop(leader);
    let next = nodes.leader().await;
    assert_ne!(next, leader);
    stop.send(()).unwrap();
    assert!(asking.await.unwrap() > 1);
    held.verify().await.unwrap();
    short.verify().await.unwrap();
    held.release().await.unwrap();
    let handed = waiting.await.unwrap().unwrap();
    assert!(handed.token_hint().unwrap().get() > token, "the waiter kept its place (P2, P8)");
    handed.release().await.unwrap();
    short.release().await.unwrap();
    assert_eq!(locks.list(None).await.unwrap().len(), 0);
}

async fn until_waiting(locks: &Locks, lock: &str) {
    let begun = std::time::Instant::now();
    while locks.inspect(&name(lock)).await.unwrap().waiter_count == 0 {
        assert!(begun.elapsed() < DEADLINE, "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
