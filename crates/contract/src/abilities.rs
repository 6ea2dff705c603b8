//! Measures every ability by trying it.

use std::time::Duration;

use lockkeeper::{
    AcquireError, BackendErrorKind, BreakOrder, ChangeError, Fenced, Guard, Lock, LockName, Locks, Unfenced,
    Wait, WatchEvent,
};

use crate::subject::{Subject, start_waiting, until, until_waiting};

const SECOND: Duration = Duration::from_secs(1);

pub async fn compare(subject: &impl Subject) {
    let locks = subject.client("first").await;
    let mut derived = Vec::new();
    for (ability, declared) in locks.capabilities().abilities() {
        let found = match ability {
            "fencing" => fencing(subject).await,
            "ttl" => ttl(subject).await,
            "shared" => shared(subject).await,
            "permits" => permits(subject).await,
            "subtree" => subtree(subject).await,
            "multi" => multi(subject).await,
            "wait" => waits(subject).await,
            // The order may be right by chance although the backend does not guarantee it.
            "fair" => declared && fair(subject).await,
            "queue_limit" => queue_limit(subject).await,
            "keep_closed" => keep_closed(subject).await,
            "lock_delay" => lock_delay(subject).await,
            "inspect" => inspect(subject).await,
            "watch" => watches(subject).await,
            "break" => breaks(subject).await,
            "break_now" => break_now(subject).await,
            "values" => values(subject).await,
            "downgrade" => downgrade(subject).await,
            "cached" => cached(subject).await,
            other => panic!("the suite has no way to derive the ability `{other}`"),
        };
        derived.push((ability, declared, found));
    }
    let wrong: Vec<_> = derived.iter().filter(|(_, declared, found)| declared != found).collect();
    assert!(wrong.is_empty(), "{}: (ability, declared, found): {wrong:?}", subject.scheme());
}

/// Tries to acquire without waiting. A missing ability must be a clear error (P11).
async fn attempt(lock: Lock<Unfenced>) -> Attempt {
    match lock.wait(Wait::No).acquire().await {
        Ok(guard) => Attempt::Held(guard),
        Err(AcquireError::Busy(_)) => Attempt::Busy,
        Err(AcquireError::Unsupported(error)) => {
            assert!(!error.why.is_empty() && !error.instead.is_empty(), "P11: {error}");
            Attempt::Unsupported
        }
        Err(AcquireError::Backend(error)) if error.kind == BackendErrorKind::Unsupported => {
            Attempt::Unsupported
        }
        Err(other) => panic!("neither held, nor busy, nor unsupported: {other}"),
    }
}

enum Attempt {
    Held(Guard<Unfenced>),
    Busy,
    Unsupported,
}

impl Attempt {
    fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }
    fn is_busy(&self) -> bool {
        matches!(self, Self::Busy)
    }
    fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported)
    }
}

async fn pair(subject: &impl Subject) -> (Locks, Locks) {
    (subject.client("one").await, subject.client("two").await)
}

async fn fencing(subject: &impl Subject) -> bool {
    let Ok(locks) = subject.client("one").await.fenced() else { return false };
    let hold = async || -> Guard<Fenced> { locks.mutex("abilities/fencing").acquire().await.unwrap() };
    let first = hold().await;
    let token = first.token();
    first.release().await.unwrap();
    hold().await.token() > token
}

async fn ttl(subject: &impl Subject) -> bool {
    let locks = subject.client("one").await;
    let held = locks.mutex("abilities/ttl").ttl(2 * SECOND).no_renew().acquire().await.unwrap();
    subject.pass(3 * SECOND).await;
    held.loss().is_some()
}

async fn shared(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let name = "abilities/shared";
    let first = attempt(one.rw(name).read()).await;
    if first.is_unsupported() {
        return false;
    }
    let second = attempt(two.rw(name).read()).await;
    let writer = attempt(two.rw(name).write()).await;
    first.is_held() && second.is_held() && writer.is_busy()
}

async fn permits(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let name = "abilities/permits";
    let first = attempt(one.semaphore(name, 2)).await;
    if first.is_unsupported() {
        return false;
    }
    let second = attempt(two.semaphore(name, 2)).await;
    let third = attempt(one.semaphore(name, 2)).await;
    let (Attempt::Held(first), Attempt::Held(second)) = (first, second) else { return false };
    let mut slots = [first.slot(), second.slot()];
    slots.sort_unstable();
    crate::permits::check(subject).await;
    third.is_busy() && slots == [Some(0), Some(1)]
}

async fn subtree(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let whole = attempt(one.mutex("abilities/subtree").subtree()).await;
    if whole.is_unsupported() {
        return false;
    }
    let inside = attempt(two.mutex("abilities/subtree/a/b")).await;
    let beside = attempt(two.mutex("abilities/subtree2")).await;
    whole.is_held() && inside.is_busy() && beside.is_held()
}

async fn multi(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let both = attempt(one.all(["abilities/multi/b", "abilities/multi/a"])).await;
    if both.is_unsupported() {
        return false;
    }
    let a = attempt(two.mutex("abilities/multi/a")).await;
    let b = attempt(two.mutex("abilities/multi/b")).await;
    let joined = attempt(two.mutex("abilities/multi/aabilities/multi/b")).await;
    // The third name detects a client that joins the names to one key (as rslock does), which locks neither
    // of them.
    both.is_held() && a.is_busy() && b.is_busy() && joined.is_held()
}

async fn waits(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let name = "abilities/wait";
    let held = one.mutex(name).acquire().await.unwrap();
    let waiting = start_waiting(two.mutex(name)).await;
    held.release().await.unwrap();
    waiting.await.unwrap().is_ok()
}

async fn fair(subject: &impl Subject) -> bool {
    let one = subject.client("one").await;
    let name = "abilities/fair";
    let held = one.mutex(name).acquire().await.unwrap();
    let (order_in, mut order) = tokio::sync::mpsc::unbounded_channel();
    for turn in 0..5 {
        let (client, order_in) = (subject.client(&format!("waiter {turn}")).await, order_in.clone());
        let (told_in, mut told) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let lock = client.mutex(name).on_queued(move |ahead| told_in.send(ahead).unwrap_or(()));
            let guard = lock.acquire().await.unwrap();
            order_in.send(turn).unwrap();
            guard.release().await.unwrap();
        });
        let ahead = tokio::time::timeout(30 * SECOND, told.recv()).await.expect("it is told that it waits");
        assert_eq!(ahead, Some(turn), "the number of waiters ahead");
        until_waiting(&one, name, turn as usize + 1).await;
    }
    drop(order_in);
    held.release().await.unwrap();
    let mut seen = Vec::new();
    while let Some(turn) = order.recv().await {
        seen.push(turn);
    }
    seen == [0, 1, 2, 3, 4]
}

async fn queue_limit(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let name = "abilities/queue_limit";
    let held = one.mutex(name).acquire().await.unwrap();
    let third = || two.mutex(name).max_waiters(1);
    if !one.capabilities().queue_limit {
        let refused = third().acquire().await;
        return !matches!(refused, Err(AcquireError::Unsupported(_)));
    }
    let waiting = start_waiting(third()).await;
    until_waiting(&one, name, 1).await;
    let refused = third().acquire().await;
    held.release().await.unwrap();
    matches!(refused, Err(AcquireError::Busy(_))) && waiting.await.unwrap().is_ok()
}

async fn keep_closed(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let name = "abilities/keep_closed";
    let Attempt::Held(held) = attempt(one.mutex(name).keep_closed(2 * SECOND)).await else { return false };
    held.release().await.unwrap();
    let shut = attempt(two.mutex(name)).await.is_busy();
    subject.pass(3 * SECOND).await;
    let open = attempt(two.mutex(name)).await.is_held();
    subject.crash_closing("abilities/keep_closed/crash", 3600 * SECOND, Duration::ZERO).await;
    shut && open && attempt(two.mutex("abilities/keep_closed/crash")).await.is_busy()
}

async fn lock_delay(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let Attempt::Held(held) = attempt(one.mutex("abilities/lock_delay").lock_delay(60 * SECOND)).await else {
        return false;
    };
    held.release().await.unwrap();
    let released = attempt(two.mutex("abilities/lock_delay")).await.is_held();
    subject.crash_closing("abilities/lock_delay/crash", Duration::ZERO, 3600 * SECOND).await;
    released && attempt(two.mutex("abilities/lock_delay/crash")).await.is_busy()
}

/// A watch tells of a hold that began after it.
async fn watches(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let mut watch = match one.watch(Some("abilities/watch")) {
        Ok(watch) => watch,
        Err(error) if error.kind == BackendErrorKind::Unsupported => return false,
        Err(error) => panic!("{error}"),
    };
    let mut next = async || {
        tokio::time::timeout(30 * SECOND, watch.next()).await.expect("an event").expect("no end").unwrap()
    };
    assert_eq!(next().await, WatchEvent::Synced, "no lock is in use");
    let _held = two.mutex("abilities/watch").acquire().await.unwrap();
    loop {
        match next().await {
            WatchEvent::Changed(lock) if lock.holds.is_empty() => {}
            other => return matches!(other, WatchEvent::Changed(lock) if lock.hold_count == 1),
        }
    }
}

async fn inspect(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let name: LockName = "abilities/inspect".parse().unwrap();
    let _held = one.mutex(&name).meta("job", "reindex").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let (two, name) = (two.clone(), name.clone());
        async move { two.mutex(&name).acquire().await.map(drop) }
    });
    let seen = until("the waiter is shown", async || {
        let info = two.inspect(&name).await.ok()?;
        (info.waiter_count == 1 || !subject.shows_waiters()).then_some(info)
    })
    .await;
    waiting.abort();
    let listed = two.list(Some("abilities")).await.unwrap();
    let busy = two.mutex(&name).wait(Wait::No).acquire().await;
    let Err(AcquireError::Busy(busy)) = busy else { panic!("{}: not busy: {busy:?}", subject.scheme()) };
    assert!(busy.holder.is_some_and(|holder| holder.starts_with("one")), "{}", subject.scheme());
    seen.holds.len() == 1
        && seen.holds[0].label.starts_with("one")
        && seen.holds[0].meta.contains(&("job".to_owned(), "reindex".to_owned()))
        && (!subject.shows_waiters() || seen.waiters[0].label.starts_with("two"))
        && listed.iter().any(|info| info.name == name)
}

async fn break_it(subject: &impl Subject, name: &str, now: bool) -> Option<(Guard<Unfenced>, Locks)> {
    let (one, two) = pair(subject).await;
    let held = one.mutex(name).grace(SECOND).acquire().await.unwrap();
    let order = BreakOrder {
        name: name.parse().unwrap(),
        token: held.token_hint()?,
        reason: "the suite tries it".into(),
        by: "operator".into(),
        now,
    };
    two.break_hold(order).await.ok()?;
    Some((held, two))
}

async fn breaks(subject: &impl Subject) -> bool {
    let Some((held, two)) = break_it(subject, "abilities/break", false).await else { return false };
    let lost = held.lost();
    until("the holder hears of the break", async || lost.is_cancelled().then_some(())).await;
    // Services with our own table say who ordered the break, and why; those have all that it can.
    let said =
        held.valid_until().unwrap_err().broken.map(|notice| (notice.by.clone(), notice.reason.clone()));
    let order = ("operator".to_owned(), "the suite tries it".to_owned());
    assert_eq!(said, two.capabilities().downgrade.then_some(order));
    let early = attempt(two.mutex("abilities/break")).await.is_busy();
    // The holder's library releases the lock when the grace period is over, long before a ttl.
    subject.pass(2 * SECOND).await;
    early && two.mutex("abilities/break").wait(Wait::For(20 * SECOND)).acquire().await.is_ok()
}

async fn break_now(subject: &impl Subject) -> bool {
    let Some((_held, two)) = break_it(subject, "abilities/break_now", true).await else { return false };
    attempt(two.mutex("abilities/break_now")).await.is_held()
}

async fn values(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let name = "abilities/values";
    let held = one.mutex(name).acquire().await.unwrap();
    if is_unsupported(&held.set_value(*b"10.0.0.5:80").await) {
        return false;
    }
    let value = async || {
        let holders = two.inspect(name).await.unwrap().holds;
        holders.into_iter().next().map(|holder| holder.value)
    };
    assert_eq!(value().await.as_deref(), Some(&b"10.0.0.5:80"[..]));
    let too_long = held.set_value(vec![0; 4_097]).await;
    assert!(
        matches!(&too_long, Err(ChangeError::Backend(error)) if error.to_string().contains("4096")),
        "{too_long:?}"
    );
    let bytes: Vec<u8> = (0..4_096).map(|at: u32| at.to_le_bytes()[0]).collect();
    held.set_value(bytes.clone()).await.unwrap();
    assert_eq!(value().await, Some(bytes));
    held.verify().await.unwrap();
    held.set_value(Vec::new()).await.unwrap();
    assert_eq!(value().await, Some(Vec::new()));
    held.release().await.unwrap();
    let next = two.mutex(name).acquire().await.unwrap();
    assert_eq!(value().await, Some(Vec::new()), "a value ends with its hold");
    drop(next);
    true
}

/// An exclusive hold that becomes a shared one.
async fn downgrade(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let name = "abilities/downgrade";
    let held = one.mutex(name).acquire().await.unwrap();
    if one.capabilities().shared {
        assert!(attempt(two.rw(name).read()).await.is_busy());
    }
    if is_unsupported(&held.downgrade().await) {
        return false;
    }
    held.downgrade().await.expect("once more has no effect");
    let shared = attempt(two.rw(name).read()).await;
    assert!(shared.is_held() && held.loss().is_none());
    held.verify().await.unwrap();
    true
}

/// A hold that stays with its client after the release, and is given back when another client asks.
async fn cached(subject: &impl Subject) -> bool {
    let (one, two) = pair(subject).await;
    let name = "abilities/cached";
    let lock = one.mutex(name).cached();
    let section = async || match attempt(lock.clone()).await {
        Attempt::Held(held) => Some(held),
        Attempt::Unsupported => None,
        Attempt::Busy => panic!("{}: nobody else uses it", subject.scheme()),
    };
    let held_by_one = async || two.inspect(name).await.unwrap().hold_count == 1;
    let mut last = None;
    for recalls in 0..2 {
        for _ in 0..4 {
            assert!(!held_by_one().await);
            let Some(held) = section().await else { return false };
            held.release().await.unwrap();
        }
        assert!(held_by_one().await, "after four acquires in a row");
        let held = section().await.unwrap();
        assert!(held.token_hint() > last, "each section has a token above all earlier ones");
        last = held.token_hint();
        held.verify().await.unwrap();
        if recalls == 0 {
            assert!(attempt(two.mutex(name)).await.is_busy(), "a section uses it");
        }
        held.release().await.unwrap();
        assert_eq!(held_by_one().await, recalls == 1, "a recalled hold ends with its section");
    }
    let Attempt::Held(next) = attempt(two.mutex(name)).await else { panic!("it is idle") };
    next.token_hint() > last && attempt(lock.clone()).await.is_busy()
}

/// Whether a change is unsupported, which must be a clear error (P11); fails if it could not be made for
/// another reason.
fn is_unsupported(changed: &Result<(), ChangeError>) -> bool {
    match changed {
        Ok(()) => false,
        Err(ChangeError::Unsupported(error)) => {
            assert!(!error.why.is_empty() && !error.instead.is_empty(), "P11: {error}");
            true
        }
        Err(other) => panic!("neither changed nor unsupported: {other}"),
    }
}
