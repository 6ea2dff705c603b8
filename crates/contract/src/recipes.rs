//! The recipes, on every lock service that has what they need.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{AcquireError, Guard, Leader, LeaderWatch, Locks, Token};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::subject::{Subject, until};

pub async fn check(subject: &impl Subject) {
    election(subject).await;
    resigning_leader_is_followed_by_the_next(subject).await;
    partitions(subject).await;
    rate(subject).await;
    min_hold(subject).await;
}

/// Observes until `wanted`; the deadline only makes a failure visible.
async fn observed(
    watch: &mut LeaderWatch,
    what: &str,
    wanted: impl Fn(Option<&Leader>) -> bool,
) -> Option<Leader> {
    let observing = async {
        loop {
            let leader = watch.next().await.unwrap();
            if wanted(leader.as_ref()) {
                return leader;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), observing)
        .await
        .unwrap_or_else(|_| panic!("waited for 30 s: {what}"))
}

/// The value to proclaim, where the lock service keeps values.
fn value(locks: &Locks, value: &str) -> Vec<u8> {
    if locks.capabilities().values { value.into() } else { Vec::new() }
}

/// The leader as it must be observed.
fn is_led_by(leader: Option<&Leader>, guard: &Guard, value: &[u8]) -> bool {
    leader.is_some_and(|leader| leader.token == guard.token_hint() && leader.value == value)
}

async fn election(subject: &impl Subject) {
    let name = "recipes/election";
    let (one, two) = (subject.client("one").await, subject.client("two").await);
    let mut watch = two.election(name).observe();
    assert_eq!(watch.next().await.unwrap(), None, "nobody leads at first");
    // Another lock's holder is no leader of this one.
    let below = one.mutex("recipes/election/below").acquire().await.unwrap();
    let first = value(&one, "first");
    let leadership = one.election(name).campaign(first.clone()).await.unwrap();
    let leader = observed(&mut watch, "the leader", |leader| leader.is_some()).await;
    assert!(is_led_by(leader.as_ref(), &leadership, &first), "{leader:?}, not {leadership:?}");
    assert_eq!(two.election(name).leader().await.unwrap(), leader);
    if one.capabilities().values {
        leadership.set_value("second").await.unwrap();
        observed(&mut watch, "the proclamation", |leader| is_led_by(leader, &leadership, b"second")).await;
    }
    leadership.release().await.unwrap();
    observed(&mut watch, "no leader", |leader| leader.is_none()).await;
    assert_eq!(two.election(name).leader().await.unwrap(), None);
    below.release().await.unwrap();
}

async fn resigning_leader_is_followed_by_the_next(subject: &impl Subject) {
    let name = "recipes/succession";
    let (one, two) = (subject.client("one").await, subject.client("two").await);
    if !one.capabilities().wait {
        return;
    }
    let (first, second) = (value(&one, "one"), value(&one, "two"));
    let leads = one.election(name).campaign(first.clone()).await.unwrap();
    let next = two.election(name);
    let campaign = tokio::spawn({
        let second = second.clone();
        async move { next.campaign(second).await.unwrap() }
    });
    let mut watch = two.election(name).observe();
    observed(&mut watch, "the first leader", |leader| is_led_by(leader, &leads, &first)).await;
    let token = leads.token_hint();
    leads.release().await.unwrap();
    let follows = campaign.await.unwrap();
    assert!(token.is_none() || follows.token_hint() > token, "{:?} after {token:?}", follows.token_hint());
    observed(&mut watch, "the second leader", |leader| is_led_by(leader, &follows, &second)).await;
    follows.release().await.unwrap();
}

const PARTITIONS: u32 = 16;

/// Who owns which partition, and the latest token of each.
#[derive(Clone, Default)]
struct Owners(Arc<Mutex<Owned>>);

#[derive(Default)]
struct Owned {
    by: BTreeMap<u32, usize>,
    tokens: BTreeMap<u32, Option<Token>>,
}

impl Owners {
    fn begins(&self, index: u32, member: usize, token: Option<Token>) {
        let mut owned = self.0.lock().unwrap();
        assert_eq!(owned.by.insert(index, member), None, "partition {index} has two owners");
        let before = owned.tokens.insert(index, token).flatten();
        assert!(before.is_none() || before < token, "{token:?} after {before:?}");
    }

    fn ends(&self, index: u32) {
        self.0.lock().unwrap().by.remove(&index);
    }

    /// How many partitions a member owns.
    fn count(&self, member: usize) -> usize {
        self.0.lock().unwrap().by.values().filter(|owner| **owner == member).count()
    }
}

/// Runs a member until it is told to stop; it works on each partition until that is to be given up.
fn member(locks: Locks, number: usize, owners: Owners, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut member = locks.partitions("recipes/partitions", PARTITIONS).join().await.unwrap();
        let mut works = tokio::task::JoinSet::new();
        loop {
            let partition = tokio::select! {
                partition = member.next() => partition.unwrap(),
                () = stop.cancelled() => break,
            };
            owners.begins(partition.index(), number, partition.token_hint());
            let owners = owners.clone();
            works.spawn(async move {
                partition.leaving().await;
                owners.ends(partition.index());
                partition.release().await.unwrap();
            });
        }
        member.leave().await.unwrap();
        works.join_all().await;
    })
}

async fn partitions(subject: &impl Subject) {
    let (one, two) = (subject.client("one").await, subject.client("two").await);
    if !one.capabilities().wait {
        return;
    }
    let owners = Owners::default();
    let (stop_one, stop_two) = (CancellationToken::new(), CancellationToken::new());
    let all = PARTITIONS as usize;
    let owned = |one, two| {
        let owners = owners.clone();
        async move || ((owners.count(1), owners.count(2)) == (one, two)).then_some(())
    };
    let first = member(one.clone(), 1, owners.clone(), stop_one.clone());
    until("the first member has all", owned(all, 0)).await;
    match two.partitions("recipes/partitions", PARTITIONS + 1).join().await {
        Err(AcquireError::Backend(error)) => assert!(error.message.contains("17"), "{error}"),
        other => panic!("another number of partitions: {other:?}"),
    }
    let second = member(two, 2, owners.clone(), stop_two.clone());
    let share = until("the second member has its share", async || {
        let (one, two) = (owners.count(1), owners.count(2));
        (two > 0 && one + two == all).then_some(two)
    })
    .await;
    assert!(share < all, "the first one keeps some, but for one time in 65,536");
    stop_two.cancel();
    second.await.unwrap();
    until("the first member has all again", owned(all, 0)).await;
    stop_one.cancel();
    first.await.unwrap();
    assert!(one.list(Some("recipes/partitions")).await.unwrap().is_empty());
}

/// Within the time, no more begin than the rate says, however early they end.
async fn rate(subject: &impl Subject) {
    let locks = subject.client("one").await;
    let second = Duration::from_secs(1);
    let rate = || locks.rate("recipes/rate", 2, second);
    let can = locks.capabilities();
    if !(can.permits && can.keep_closed) {
        match rate().try_acquire().await {
            Err(AcquireError::Unsupported(_)) => {}
            other => panic!("not refused: {other:?}"),
        }
        return;
    }
    loop {
        let began = std::time::Instant::now();
        for _ in 0..2 {
            rate().try_acquire().await.unwrap().expect("a permit").release().await.unwrap();
        }
        let third = rate().try_acquire().await.unwrap();
        let took = began.elapsed();
        // etcd counts whole seconds.
        subject.pass(3 * second).await;
        // A machine that is too busy for all this within a second shows nothing.
        if took < second {
            assert!(third.is_none());
            break;
        }
    }
    assert!(rate().try_acquire().await.unwrap().is_some());
}

/// A hold lasts for its least duration, whether it is released or dropped.
async fn min_hold(subject: &impl Subject) {
    const MIN: Duration = Duration::from_millis(700);
    const STEP: Duration = Duration::from_millis(20);
    let (one, two) = (subject.client("one").await, subject.client("two").await);
    for is_released in [true, false] {
        let name = format!("recipes/min-hold/{is_released}");
        let begun = std::time::Instant::now();
        let guard = one.mutex(&name).min_hold(MIN).acquire().await.unwrap();
        let released = if is_released {
            tokio::spawn(guard.release())
        } else {
            drop(guard);
            tokio::spawn(std::future::ready(Ok(())))
        };
        let mut passed = Duration::ZERO;
        let next = until("the end of the hold", async || {
            subject.pass(STEP).await;
            passed += STEP;
            two.mutex(&name).try_acquire().await.unwrap()
        })
        .await;
        // Virtual time passes by steps only, real time also between them.
        let held = begun.elapsed().max(passed);
        assert!(held >= MIN, "released: {is_released}; free after {held:?}");
        released.await.unwrap().unwrap();
        next.release().await.unwrap();
    }
    let refused =
        one.mutex("recipes/min-hold").min_hold(Duration::from_secs(86_401)).acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Invalid { option: "min_hold", .. }), "{refused}");
}
