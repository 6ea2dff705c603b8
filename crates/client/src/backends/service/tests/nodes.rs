//! Tests with several nodes and changes of leader.

use super::stand_in::StandIn;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_redirects_a_client_to_the_leader() {
    let service = StandIn::cluster(3);
    let locks = service.client_of(2, "one").await;
    let held = locks.mutex("a").acquire().await.unwrap();
    assert_eq!((service.streams_of(0), service.streams_of(2)), (1, 0));
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_is_enough_even_if_its_node_dies() {
    let service = StandIn::cluster(3);
    let locks = service.client("one").await;
    let held = locks.mutex("a").acquire().await.unwrap();
    for (dead, next) in [(0, 1), (1, 2)] {
        service.kill(dead);
        service.elect(next);
        locks.mutex("b").acquire().await.unwrap().release().await.unwrap();
        assert_eq!(service.streams_of(next), 1);
        assert_eq!(held.loss(), None, "its session goes along");
    }
    assert_eq!(service.tokens("a"), [held.token_hint().unwrap().get()]);
    held.release().await.unwrap();
    assert_eq!(service.in_use(), 0);
}

/// P7: commands that the dead leader executed without an answer are not executed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_unanswered_by_a_dead_leader_are_resent_in_order_and_applied_once() {
    let service = StandIn::cluster(3);
    let locks = service.client("one").await;
    let held = locks.mutex("a").acquire().await.unwrap();
    service.lose_answers(true);
    let releasing = tokio::spawn(async move { held.release().await });
    until("the lock is free", || service.tokens("a").is_empty()).await;
    let mut acquiring = Vec::new();
    let mut tokens = Vec::new();
    for name in ["b", "c", "d"] {
        let lock = locks.mutex(name);
        acquiring.push(tokio::spawn(async move { lock.acquire().await }));
        until("it is granted", || service.tokens(name).len() == 1).await;
        tokens.extend(service.tokens(name));
    }
    service.kill(0);
    service.lose_answers(false);
    service.elect(1);
    releasing.await.unwrap().unwrap();
    let mut guards = Vec::new();
    for acquiring in acquiring {
        guards.push(acquiring.await.unwrap().unwrap());
    }
    let returned: Vec<u64> = guards.iter().map(|guard| guard.token_hint().unwrap().get()).collect();
    assert_eq!(returned, tokens, "the grants that the dead leader had made");
    assert_eq!((service.tokens("b").len(), service.tokens("c").len(), service.in_use()), (1, 1, 3));
    let heard = service.heard();
    let [.., before, after] = &heard[..] else { panic!("two streams: {heard:?}") };
    let unresolved = &before[before.len() - 4..];
    assert_eq!(after[..4], *unresolved, "all four, in the order of their numbers");
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(service.in_use(), 0);
}

/// The service may take the end of the stream for a close by the client and cut the session's remaining time
/// to `linger`, so the client shortens its lease deadline too. It must attach to the session at the next
/// leader before that deadline; the attach extends the deadline again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_with_linger_survives_a_change_of_leader() {
    let service = StandIn::cluster(3);
    let locks = service.client("one").await;
    let held = locks.mutex("a").linger(SECOND).acquire().await.unwrap();
    service.kill(0);
    until("it waits at another node", || service.streams_of(1) + service.streams_of(2) > 0).await;
    service.elect(1);
    until("its time is whole again", || held.check(20 * SECOND).is_ok()).await;
    assert_eq!(held.loss(), None);
    held.release().await.unwrap();
}

/// The driver skips the dead node and gets the leader's address from another one. The first node tried is
/// random, so the test is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_in_the_url_is_skipped() {
    for _ in 0..4 {
        let service = StandIn::cluster(3);
        service.kill(0);
        service.elect(2);
        let nodes = [0, 1, 2].map(|node| service.address_of(node).to_string()).join(",");
        let locks = Locks::connect(&format!("lockkeeper://{nodes}")).await.unwrap();
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        assert_eq!(service.streams_of(2), 1);
    }
}
