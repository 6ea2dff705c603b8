//! The recipes, on every lock service that has what they need.

use std::time::Duration;

use lockkeeper::{Guard, Leader, LeaderWatch, Locks};

use crate::subject::Subject;

pub(crate) async fn check(subject: &impl Subject) {
    election(subject).await;
    resigning_leader_is_followed_by_the_next(subject).await;
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
