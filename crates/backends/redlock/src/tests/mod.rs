//! Tests of the quorum over in-memory nodes, on virtual time: every fault, and the entries left after it.

mod fake;
mod random;

use std::time::Duration;

use lockkeeper_backend::CallError;
use lockkeeper_backend::leased::{Renewed, Store, Tried, Wake};
use lockkeeper_core::End;
use tokio::time::{Instant, sleep, timeout};

use fake::{Fake, Fault, TTL, attempt, client, entry, entry_with, held_at, holders, name, nodes};

const MS: Duration = Duration::from_millis(1);
/// Longer than any call may take.
const SETTLED: Duration = Duration::from_secs(3);

fn is_granted(tried: &Result<Tried, CallError>) -> bool {
    matches!(tried, Ok(Tried::Granted(_)))
}

fn set(nodes: &[Fake], fault: Fault) {
    nodes.iter().for_each(|node| node.set(fault));
}

#[tokio::test(start_paused = true)]
async fn all_nodes_are_asked_at_once() {
    let nodes = nodes(5);
    nodes.iter().for_each(|node| node.set_delay(100 * MS));
    let (store, _) = client(&nodes);
    let from = Instant::now();
    assert!(is_granted(&store.attempt(attempt(&entry("a"), false)).await));
    // Virtual time: one round trip, not five.
    assert!(from.elapsed() < 110 * MS, "{:?}", from.elapsed());
    sleep(SETTLED).await;
    assert_eq!(held_at(&nodes, "a"), 5);
}

#[tokio::test(start_paused = true)]
async fn hung_and_dead_nodes_do_not_slow_an_acquire_down() {
    let nodes = nodes(5);
    nodes[0].set(Fault::Hung);
    nodes[3].set(Fault::Dead);
    let (store, _) = client(&nodes);
    let from = Instant::now();
    assert!(is_granted(&store.attempt(attempt(&entry("a"), false)).await));
    assert!(from.elapsed() < 10 * MS, "{:?}", from.elapsed());
    assert_eq!(store.finish(entry("a"), false).await, Ok(End::Released));
    assert!(from.elapsed() < 20 * MS, "{:?}", from.elapsed());
    // Calls that the first node received while it hung leave no entry when it resumes.
    nodes[0].set(Fault::None);
    sleep(SETTLED).await;
    assert_eq!(holders(&nodes), [const { None }; 5]);
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_nothing_is_held_and_every_node_is_named() {
    let nodes = nodes(5);
    set(&nodes[1..4], Fault::Dead);
    let (store, _) = client(&nodes);
    let tried = store.attempt(attempt(&entry("a"), true)).await;
    // No majority can hold it: nothing is in doubt.
    assert!(matches!(tried, Err(CallError { sent: false, .. })), "{tried:?}");
    let says = store.trouble().expect("it is told");
    for part in
        ["3 of 5", "n1: granted, and taken back", "n2: connection refused", "n4: connection refused", "n5"]
    {
        assert!(says.contains(part), "`{part}` is missing: {says}");
    }
    sleep(5 * MS).await;
    assert_eq!(holders(&nodes), [const { None }; 5]);
    set(&nodes[1..2], Fault::None);
    assert!(is_granted(&store.attempt(attempt(&entry("a"), true)).await));
    assert_eq!(store.trouble(), None);
}

#[tokio::test(start_paused = true)]
async fn a_hung_majority_is_reported_in_doubt_after_the_time_limit() {
    let nodes = nodes(5);
    set(&nodes[..3], Fault::Hung);
    let (store, _) = client(&nodes);
    let from = Instant::now();
    let tried = store.attempt(attempt(&entry("a"), false)).await;
    assert!(matches!(tried, Err(CallError { sent: true, .. })), "{tried:?}");
    assert!(from.elapsed() <= TTL / 6, "{:?}", from.elapsed());
    assert!(store.trouble().is_some_and(|says| says.contains("n1: no answer within 500ms")));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_majority_refuses_is_refused() {
    let nodes = nodes(3);
    nodes[1].set(Fault::Refuses);
    let (store, _) = client(&nodes);
    assert!(is_granted(&store.attempt(attempt(&entry("a"), false)).await), "one is not enough to refuse");
    store.finish(entry("a"), false).await.unwrap();
    nodes[2].set(Fault::Refuses);
    let Ok(Tried::Refused(error)) = store.attempt(attempt(&entry("b"), false)).await else {
        panic!("two of three refuse")
    };
    for part in ["2 of 3", "n2: refused: wrong password", "n3: refused: wrong password"] {
        assert!(error.message.contains(part), "{error}");
    }
    sleep(SETTLED).await;
    assert_eq!(holders(&nodes), [const { None }; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_rival_is_named_and_its_nodes_are_left_alone() {
    let nodes = nodes(5);
    nodes[..3].iter().for_each(|node| node.take(&name(), "redis-py"));
    let (store, _) = client(&nodes);
    let tried = store.attempt(attempt(&entry("a"), false)).await;
    assert!(
        matches!(&tried, Ok(Tried::Busy(busy)) if busy.holder.as_deref() == Some("redis-py")),
        "{tried:?}"
    );
    assert_eq!(nodes[0].attempts(), 1, "a majority is no split vote");
    sleep(5 * MS).await;
    assert_eq!((held_at(&nodes, "redis-py"), held_at(&nodes, "a")), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_split_vote_is_tried_again() {
    let nodes = nodes(5);
    nodes[0].take(&name(), "one");
    nodes[1].take(&name(), "two");
    nodes[2].take(&name(), "three");
    let (store, _) = client(&nodes);
    let trying = tokio::spawn(async move { store.attempt(attempt(&entry("a"), false)).await });
    sleep(5 * MS).await;
    // The rivals remove their entries, as this client does.
    nodes.iter().for_each(Fake::wipe);
    assert!(is_granted(&trying.await.unwrap()));
}

/// The session keeps or ends what earlier attempts of a request have left (`leased::Store::attempt`).
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_refused_keeps_its_places_and_is_granted_later() {
    let nodes = nodes(3);
    let (holder, waiter) = (client(&nodes).0, client(&nodes).0);
    assert!(is_granted(&holder.attempt(attempt(&entry("a"), false)).await));
    let asked = attempt(&entry("b"), true);
    assert!(matches!(waiter.attempt(asked.clone()).await, Ok(Tried::Waits { .. })));
    set(&nodes, Fault::Refuses);
    assert!(matches!(waiter.attempt(asked.clone()).await, Ok(Tried::Refused(_))));
    set(&nodes, Fault::None);
    assert!(matches!(waiter.attempt(asked.clone()).await, Ok(Tried::Waits { .. })));
    assert_eq!(holder.finish(entry("a"), false).await, Ok(End::Released));
    sleep(SETTLED).await;
    assert!(is_granted(&waiter.attempt(asked).await));
}

/// The removal must not depend on the cancelled call: redsync's rollback used the cancelled context.
#[tokio::test(start_paused = true)]
async fn an_attempt_cancelled_at_any_moment_leaves_no_entries() {
    let mut moments = 0;
    for step in 0..60 {
        for faults in [[Fault::None; 2], [Fault::Hung, Fault::Dead], [Fault::LosesAnswers, Fault::Hung]] {
            let nodes = nodes(5);
            for (index, node) in nodes.iter().enumerate() {
                node.set_delay((7 * u32::try_from(index).unwrap() + 5) * MS);
            }
            nodes[1].set(faults[0]);
            nodes[4].set(faults[1]);
            let (store, _) = client(&nodes);
            // Cancelled by its time limit, and never finished.
            let cancelled = timeout(step * MS, store.attempt(attempt(&entry("a"), true))).await.is_err();
            moments += u32::from(cancelled);
            set(&nodes, Fault::None);
            if cancelled {
                sleep(SETTLED).await;
                assert_eq!(
                    holders(&nodes),
                    [const { None }; 5],
                    "cancelled after {step} ms under {faults:?}"
                );
            }
        }
    }
    assert!(moments > 50, "{moments} were cancelled");
}

/// The runtime of the releasing caller may end at any moment.
#[tokio::test(start_paused = true)]
async fn a_release_dropped_at_any_moment_leaves_no_entries() {
    let mut moments = 0;
    for step in 0..40 {
        for fault in [Fault::None, Fault::Hung, Fault::LosesAnswers, Fault::LosesCalls] {
            let nodes = nodes(5);
            let (store, _) = client(&nodes);
            assert!(is_granted(&store.attempt(attempt(&entry("a"), true)).await));
            sleep(SETTLED).await;
            for (index, node) in nodes.iter().enumerate() {
                node.set_delay((7 * u32::try_from(index).unwrap() + 5) * MS);
            }
            nodes[1].set(fault);
            moments += u32::from(timeout(step * MS, store.finish(entry("a"), false)).await.is_err());
            set(&nodes, Fault::None);
            sleep(SETTLED).await;
            assert_eq!(holders(&nodes), [const { None }; 5], "dropped after {step} ms under {fault:?}");
        }
    }
    assert!(moments > 50, "{moments} were dropped");
}

#[tokio::test(start_paused = true)]
async fn failed_attempts_are_taken_back_soon_after_the_nodes_recover() {
    for fault in [Fault::Hung, Fault::LosesAnswers, Fault::LosesCalls] {
        let nodes = nodes(5);
        set(&nodes[..3], fault);
        let (store, _) = client(&nodes);
        let failed = store.attempt(attempt(&entry("a"), true)).await;
        assert!(matches!(failed, Err(CallError { sent: true, .. })), "{failed:?}");
        let finishing = store.finish(entry("a"), true).await;
        assert!(finishing.is_err(), "a majority has not answered: {finishing:?}");
        sleep(TTL / 2).await;
        set(&nodes, Fault::None);
        // The longest pause between two removals, and a round trip.
        sleep(Duration::from_millis(1_002)).await;
        assert_eq!(holders(&nodes), [const { None }; 5], "{fault:?}");
        assert_eq!(store.finish(entry("a"), true).await, Ok(End::Gone), "and it is known");
        let late = store.attempt(attempt(&entry("a"), true)).await;
        assert!(late.is_err(), "a try that comes after its end: {late:?}");
        assert_eq!(holders(&nodes), [const { None }; 5]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_taken_back_before_the_next_and_blocks_no_other() {
    let nodes = nodes(5);
    nodes[..3].iter().for_each(|node| node.take(&name(), "other"));
    let (store, _) = client(&nodes);
    let entry = entry("a");
    for _ in 0..3 {
        let tried = store.attempt(attempt(&entry, true)).await;
        assert!(
            matches!(tried, Ok(Tried::Waits { again, .. }) if (50 * MS..=250 * MS).contains(&again)),
            "{tried:?}"
        );
    }
    sleep(5 * MS).await;
    assert_eq!(held_at(&nodes, "a"), 0);
    assert_eq!(nodes.iter().map(Fake::waiters).sum::<usize>(), 3, "its places in the queues are kept");
    nodes.iter().for_each(Fake::wipe);
    assert!(is_granted(&store.attempt(attempt(&entry, true)).await));
    assert_eq!(store.finish(entry, false).await, Ok(End::Released));
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_a_waiter_and_a_rivals_take_back_does_not() {
    let nodes = nodes(5);
    let (first, _) = client(&nodes);
    let (second, wakes) = client(&nodes);
    let (held, waiting) = (entry("a"), entry("b"));
    assert!(is_granted(&first.attempt(attempt(&held, false)).await));
    assert!(matches!(second.attempt(attempt(&waiting, true)).await, Ok(Tried::Waits { .. })));
    let (heard_in, mut heard) = tokio::sync::mpsc::unbounded_channel();
    wakes.listen("b", move |_, wake| heard_in.send(wake).unwrap());
    // A rival's attempt takes the free nodes, and gives them back.
    nodes[..2].iter().for_each(|node| node.free(&name()));
    let (rival, _) = client(&nodes);
    assert!(matches!(rival.attempt(attempt(&entry("c"), true)).await, Ok(Tried::Waits { .. })));
    sleep(5 * MS).await;
    assert!(heard.try_recv().is_err(), "two of five are no use to it");
    assert_eq!(rival.finish(entry("c"), true).await, Ok(End::Left));
    first.finish(held, false).await.unwrap();
    assert_eq!(heard.recv().await, Some(Wake::Try(Duration::ZERO)), "once a majority is free");
    assert!(is_granted(&second.attempt(attempt(&waiting, true)).await));
    sleep(5 * MS).await;
    assert_eq!(nodes.iter().map(Fake::waiters).sum::<usize>(), 0, "who holds waits nowhere");
}

/// P5: the session's deadline counts from its latest acknowledged keep-alive; no hold may expire on its nodes
/// before that deadline.
#[tokio::test(start_paused = true)]
async fn grants_from_before_a_keep_alive_do_not_count_after_it() {
    let nodes = nodes(3);
    nodes.iter().for_each(|node| node.set_delay(100 * MS));
    let (store, _) = client(&nodes);
    let entry = entry("a");
    let (asked, asks) = (store.clone(), attempt(&entry, false));
    let trying = tokio::spawn(async move { asked.attempt(asks).await });
    sleep(60 * MS).await;
    // The nodes have executed the attempt. The keep-alive is acknowledged without a call, since nothing holds
    // yet.
    assert_eq!(store.renew(vec![entry.clone()]).await, Ok(vec![Renewed::Kept]));
    let late = trying.await.unwrap();
    assert!(matches!(late, Err(CallError { sent: true, .. })), "{late:?}");
    sleep(SETTLED).await;
    assert_eq!(holders(&nodes), [const { None }; 3]);
    assert!(is_granted(&store.attempt(attempt(&entry, false)).await), "the next try counts");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_needs_a_majority() {
    let nodes = nodes(5);
    let (store, _) = client(&nodes);
    let entry = entry("a");
    assert!(is_granted(&store.attempt(attempt(&entry, false)).await));
    sleep(SETTLED).await;
    set(&nodes[..2], Fault::Hung);
    let from = Instant::now();
    assert_eq!(store.renew(vec![entry.clone()]).await, Ok(vec![Renewed::Kept]));
    assert!(from.elapsed() < 10 * MS, "two that hang keep nobody waiting: {:?}", from.elapsed());
    nodes[2].set(Fault::LosesAnswers);
    let unknown = store.renew(vec![entry.clone()]).await;
    assert_eq!(unknown, Err(CallError::IN_DOUBT), "it may hold, but nobody knows");
    set(&nodes, Fault::None);
    assert_eq!(store.renew(vec![entry]).await, Ok(vec![Renewed::Kept]));
}

/// A renewal that sets an entry again would take a lost lock back.
#[tokio::test(start_paused = true)]
async fn a_renewal_never_recreates_an_entry() {
    let nodes = nodes(5);
    let (store, _) = client(&nodes);
    let entry = entry("a");
    assert!(is_granted(&store.attempt(attempt(&entry, false)).await));
    sleep(SETTLED).await;
    nodes[..2].iter().for_each(Fake::wipe);
    for _ in 0..3 {
        assert_eq!(
            store.renew(vec![entry.clone()]).await,
            Ok(vec![Renewed::Kept]),
            "three of five still have it"
        );
        assert!(is_granted(&store.attempt(attempt(&entry, false)).await), "and say so when asked again");
    }
    sleep(SETTLED).await;
    assert_eq!(held_at(&nodes, "a"), 3);
    nodes[4].wipe();
    assert_eq!(store.renew(vec![entry.clone()]).await, Ok(vec![Renewed::Gone]), "two are no majority");
    sleep(5 * MS).await;
    assert_eq!(held_at(&nodes, "a"), 0, "what is left of it is taken back");
    assert!(store.attempt(attempt(&entry, false)).await.is_err(), "what is over stays over");
    assert_eq!(held_at(&nodes, "a"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_reports_whether_a_majority_still_held() {
    let nodes = nodes(3);
    let (store, _) = client(&nodes);
    let [lost, unsure] = [entry("a"), entry("b")];
    assert!(is_granted(&store.attempt(attempt(&lost, false)).await));
    sleep(SETTLED).await;
    nodes[..2].iter().for_each(Fake::wipe);
    assert_eq!(store.finish(lost, false).await, Ok(End::Gone));
    assert!(is_granted(&store.attempt(attempt(&unsure, false)).await));
    sleep(SETTLED).await;
    set(&nodes[..2], Fault::LosesAnswers);
    assert_eq!(store.finish(unsure.clone(), false).await, Err(CallError::IN_DOUBT));
    // The release is repeated until the nodes have answered.
    set(&nodes, Fault::None);
    sleep(SETTLED).await;
    assert_eq!(holders(&nodes), [const { None }; 3]);
    assert_eq!(store.finish(unsure, false).await, Ok(End::Gone));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_release_that_is_not_confirmed_says_why() {
    let nodes = nodes(3);
    let (store, _) = client(&nodes);
    let entry = entry("a");
    assert!(is_granted(&store.attempt(attempt(&entry, false)).await));
    sleep(SETTLED).await;
    set(&nodes[..2], Fault::Dead);
    for _ in 0..2 {
        let error = store.finish(entry.clone(), false).await.unwrap_err();
        let why = error.refusal.expect("a reason").message.clone();
        assert!(why.contains("n1: connection refused"), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_hold_keeps_the_lock_closed_after_its_end() {
    let nodes = nodes(3);
    nodes[1].take(&name(), "other");
    nodes[2].take(&name(), "other");
    let (store, _) = client(&nodes);
    let entry = |id| entry_with(id, Duration::from_secs(3600));
    assert!(matches!(store.attempt(attempt(&entry("a"), false)).await, Ok(Tried::Busy(_))));
    sleep(5 * MS).await;
    assert!(!nodes[0].is_closed(&name()) && nodes[0].holder(&name()).is_none());
    nodes.iter().for_each(Fake::wipe);
    assert!(is_granted(&store.attempt(attempt(&entry("b"), false)).await));
    sleep(5 * MS).await;
    assert_eq!(store.finish(entry("b"), false).await, Ok(End::Released));
    sleep(5 * MS).await;
    assert!(nodes.iter().all(|node| node.is_closed(&name())));
}

/// The number of unanswered removals on a hung node is bounded, since each takes memory.
#[tokio::test(start_paused = true)]
async fn a_node_with_too_many_unanswered_take_backs_gets_no_more_attempts() {
    let nodes = nodes(3);
    nodes[0].set(Fault::Hung);
    let (store, _) = client(&nodes);
    for round in 0..2_000 {
        let entry = entry(&format!("a{round}"));
        assert!(is_granted(&store.attempt(attempt(&entry, false)).await));
        assert_eq!(store.finish(entry, false).await, Ok(End::Released));
    }
    nodes[0].set(Fault::None);
    assert!(nodes[0].attempts() < 1_000, "{} tries waited for it", nodes[0].attempts());
    sleep(SETTLED).await;
    assert_eq!(holders(&nodes), [const { None }; 3]);
    assert!(is_granted(&store.attempt(attempt(&entry("b"), false)).await));
    sleep(SETTLED).await;
    assert_eq!(held_at(&nodes, "b"), 3, "it takes part again");
}
