//! Measures by scenarios which of P1–P12 (docs/SAFETY.md) a backend keeps.
//!
//! Each promise has a common case and, where there is one, a hard case. A promise declared as kept needs both
//! to succeed; as kept on a condition, only the common case; as not kept, the common case must fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{AcquireError, Guard, LossCause, Promise, ReleaseError, Token, Unfenced, Wait};
use lockkeeper_fence::{MemoryFence, Section};

use crate::subject::{Subject, start_waiting, until, until_waiting};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Eq)]
enum Found {
    Kept,
    KeptIf,
    NotKept,
}

impl Found {
    fn of(everyday: bool, hard: bool) -> Self {
        match (everyday, hard) {
            (true, true) => Self::Kept,
            (true, false) => Self::KeptIf,
            (false, _) => Self::NotKept,
        }
    }
}

pub async fn compare(subject: &impl Subject) {
    let declared = subject.client("asks").await.capabilities().promises;
    let mut wrong = Vec::new();
    for (number, name, &declared) in declared.list() {
        let found = tokio::time::timeout(60 * SECOND, derive(subject, number)).await;
        let found = found.unwrap_or_else(|_| panic!("{}: the scenario of P{number} hangs", subject.scheme()));
        let agrees = match declared {
            Promise::Kept => found == Found::Kept,
            Promise::KeptIf(condition) => !condition.is_empty() && found != Found::NotKept,
            Promise::NotKept(why) => !why.is_empty() && found == Found::NotKept,
        };
        if !agrees {
            wrong.push(format!("P{number} ({name}): declared `{declared}`, found {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}: {wrong:#?}", subject.scheme());
}

async fn derive(subject: &impl Subject, promise: usize) -> Found {
    match promise {
        1 => Found::of(p1_exclusion(subject).await, true),
        2 => Found::of(p2_rising(subject).await, p2_after_restart(subject).await),
        3 => Found::of(p3_fenced_sections(subject).await, true),
        4 => Found::of(p4_late_release(subject).await, true),
        5 => Found::of(p5_knows_first(subject).await && p5_overtaken(subject).await, true),
        6 => Found::of(p6_confirmed(subject).await, true),
        7 => Found::of(p7_retries(subject).await, true),
        8 => Found::of(p8_dead_waiter(subject).await, true),
        9 => Found::of(p9_stall(subject).await, true),
        10 => p10_durable(subject).await,
        11 => Found::of(p11_said_once(subject).await, true),
        _ => Found::of(p12_unknown(subject).await, true),
    }
}

/// Concurrent clients, readers and writers: none meets a conflicting holder.
async fn p1_exclusion(subject: &impl Subject) -> bool {
    let writers = Arc::new(AtomicI64::new(0));
    let readers = Arc::new(AtomicI64::new(0));
    let broken = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for worker in 0..6 {
        let locks = subject.client(&format!("worker {worker}")).await;
        let shares = locks.capabilities().shared;
        let (writers, readers, broken) = (writers.clone(), readers.clone(), broken.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..15 {
                let reads = shares && (worker + round) % 3 == 0;
                let lock = locks.rw("promises/p1");
                let guard = if reads { lock.read() } else { lock.write() }.acquire().await.unwrap();
                let (mine, others) = if reads { (&readers, &writers) } else { (&writers, &readers) };
                let before = mine.fetch_add(1, Ordering::SeqCst);
                let conflict = others.load(Ordering::SeqCst) > 0 || (!reads && before > 0);
                broken.fetch_add(u64::from(conflict), Ordering::SeqCst);
                tokio::task::yield_now().await;
                mine.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    broken.load(Ordering::SeqCst) == 0
}

async fn token(subject: &impl Subject, label: &str, name: &str) -> Option<Token> {
    let held = subject.client(label).await.mutex(name).acquire().await.unwrap();
    let token = held.token_hint();
    held.release().await.unwrap();
    token
}

/// Tokens rise from holder to holder, even if the lock was idle in between.
async fn p2_rising(subject: &impl Subject) -> bool {
    let mut last = None;
    for round in 0..10 {
        let next = token(subject, &format!("holder {round}"), "promises/p2").await;
        if next.is_none() || next <= last {
            return false;
        }
        last = next;
        let _other = token(subject, "another", "promises/p2/other").await;
    }
    last.is_some_and(|last| last.get() < 1 << 53)
}

async fn p2_after_restart(subject: &impl Subject) -> bool {
    let before = token(subject, "before", "promises/p2/restart").await;
    subject.restart().await;
    let after = token(subject, "after", "promises/p2/restart").await;
    subject.wipe().await;
    let wiped = token(subject, "after the wipe", "promises/p2/restart").await;
    before < after && after < wiped
}

/// A stalled holder resumes after its lease and writes: the fence rejects the write, and no update is lost.
async fn p3_fenced_sections(subject: &impl Subject) -> bool {
    let Some((stalled, next)) = taken_over(subject, "promises/p3").await else { return false };
    let (fence, mut value) = (MemoryFence::new(), 10);
    let (Some(old), Some(new)) = (stalled.token_hint(), next.token_hint()) else { return false };
    let section = Section::exclusive;
    fence.enter("resource", section(old)).unwrap();
    let read_by_old = value;
    fence.enter("resource", section(new)).unwrap();
    let read_by_new = value;
    let late = fence.write("resource", section(old), || value = read_by_old + 1);
    fence.write("resource", section(new), || value = read_by_new + 1).unwrap();
    late.is_err() && value == 11
}

/// A holder whose lock was taken away, and the next holder.
async fn taken_over(subject: &impl Subject, name: &str) -> Option<(Guard<Unfenced>, Guard<Unfenced>)> {
    let label = format!("stalls in {name}");
    let mut lock = subject.client(&label).await.mutex(name).grace(SECOND / 10);
    if let Some(ttl) = subject.ttl() {
        lock = lock.ttl(ttl);
    }
    let stalled = lock.acquire().await.unwrap();
    subject.take_away(&label, name).await;
    let next = subject.client("next").await.mutex(name).wait(Wait::For(20 * SECOND)).acquire().await.ok()?;
    Some((stalled, next))
}

/// The late release of a former holder does not free the next holder's lock.
async fn p4_late_release(subject: &impl Subject) -> bool {
    let Some((former, next)) = taken_over(subject, "promises/p4").await else { return false };
    let refused =
        matches!(former.release().await, Err(ReleaseError::AlreadyLost(_) | ReleaseError::Ambiguous { .. }));
    let third = subject.client("third").await.mutex("promises/p4").try_acquire().await.unwrap();
    refused && third.is_none() && next.verify().await.is_ok()
}

/// Whenever the next client holds the lock, the former holder's guard reports the loss.
async fn p5_knows_first(subject: &impl Subject) -> bool {
    for round in 0..5 {
        let name = format!("promises/p5/{round}");
        let Some((former, _next)) = taken_over(subject, &name).await else { return false };
        if !former.lost().is_cancelled() || former.check(Duration::ZERO).is_ok() {
            return false;
        }
    }
    true
}

/// A keep-alive that overtakes an acquire of the same session does not renew the hold at the service, so it
/// must not extend the lease deadline that the client assumes for that hold: after a network cut, the client
/// still considers the hold lost before the next client is granted the lock.
async fn p5_overtaken(subject: &impl Subject) -> bool {
    // A keep-alive is sent every 4 s (ttl/3), and an attempt to acquire fails after 2 s (ttl/6) or, at a
    // server of a Redlock, 0.6 s (ttl/20). So the attempt is sent only when the next keep-alive is near.
    let (name, ttl) = ("promises/p5/overtaken", 12 * SECOND);
    if !subject.hold_back(name) {
        return true;
    }
    let label = "overtakes itself";
    let locks = subject.client(label).await;
    let lock = |name: &str| locks.mutex(name).ttl(ttl);
    let other = lock("promises/p5/other").acquire().await.unwrap();
    // If the backend opens a connection for the caller's runtime, this acquire does so, and the delayed one
    // need not.
    lock("promises/p5/warm").acquire().await.unwrap().release().await.unwrap();
    until("the next keep-alive is near", async || other.check(ttl * 7 / 10).is_err().then_some(())).await;
    let before = other.valid_until();
    let overtaken = lock(name);
    let acquiring = tokio::spawn(async move { overtaken.acquire().await });
    until("the attempt is held back", async || subject.is_held_back().then_some(())).await;
    until("the keep-alive is acknowledged", async || (other.valid_until() != before).then_some(())).await;
    subject.let_go();
    let former = acquiring.await.unwrap().unwrap();
    subject.cut_off(label);
    let next = subject.client("next").await.mutex(name).wait(Wait::For(20 * SECOND)).acquire().await;
    let knows = former.lost().is_cancelled() && former.check(Duration::ZERO).is_err();
    drop(other);
    knows && next.is_ok()
}

/// Only acknowledged keep-alives extend the lease deadline. A backend without ttl has no deadline.
async fn p6_confirmed(subject: &impl Subject) -> bool {
    let held = subject.client("keeps alive").await.mutex("promises/p6").acquire().await.unwrap();
    let Ok(Some(before)) = held.valid_until() else { return !held_by_ttl(subject).await };
    let moved = until("a keep-alive is acknowledged", async || {
        subject.pass(SECOND / 2).await;
        held.valid_until().expect("it is held").filter(|now| *now > before)
    })
    .await;
    // The next keep-alive is sent after a third of the ttl, 10 s.
    subject.cut_off("keeps alive");
    subject.pass(12 * SECOND).await;
    held.valid_until() == Ok(Some(moved))
}

async fn held_by_ttl(subject: &impl Subject) -> bool {
    subject.client("asks").await.capabilities().ttl
}

/// Lost calls, lost answers and dropped futures leave no orphan and never grant twice.
async fn p7_retries(subject: &impl Subject) -> bool {
    let name = "promises/p7";
    let locks = subject.client("retries").await;
    let mut tokens = Vec::new();
    for lost in 0..4 {
        subject.lose_answers(lost);
        let held = while_time_passes(subject, locks.mutex(name).acquire()).await.unwrap();
        tokens.push(held.token_hint());
        subject.lose_calls(lost);
        let _ = held.release().await;
    }
    let held = while_time_passes(subject, locks.mutex(name).acquire()).await.unwrap();
    for _ in 0..4 {
        let abandoned = start_waiting(locks.mutex(name)).await;
        abandoned.abort();
        until_waiting(&locks, name, 0).await;
    }
    held.release().await.unwrap();
    let tokens_rise = tokens.windows(2).all(|pair| pair[0] < pair[1]);
    until("nothing is left", async || {
        subject.pass(Duration::from_millis(100)).await;
        let info = locks.inspect(name).await.unwrap();
        (info.holds.is_empty() && info.waiter_count == 0).then_some(())
    })
    .await;
    tokens_rise || tokens[0].is_none()
}

/// Advances the time while `work` runs: its retries have pauses, and virtual time does not pass by itself.
async fn while_time_passes<T>(subject: &impl Subject, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(Duration::from_millis(1)) => subject.pass(Duration::from_millis(10)).await,
        }
    }
}

/// A waiter that gave up or died blocks no other, and is never granted.
async fn p8_dead_waiter(subject: &impl Subject) -> bool {
    let name = "promises/p8";
    let locks = subject.client("holds").await;
    if !locks.capabilities().fair {
        return false;
    }
    let held = locks.mutex(name).acquire().await.unwrap();
    let gives_up = subject.client("gives up").await.mutex(name).wait(Wait::For(3 * SECOND));
    let first = tokio::spawn(async move { gives_up.acquire().await.map(drop) });
    until_waiting(&locks, name, 1).await;
    let second = subject.client("stays").await.mutex(name);
    let second = tokio::spawn(async move { second.acquire().await.map(drop) });
    until_waiting(&locks, name, 2).await;
    // On a busy machine it may not learn in time whether it was still granted the lock: then it says so.
    let gave_up = while_time_passes(subject, first).await.unwrap();
    held.release().await.unwrap();
    let second = second.await.unwrap();
    let is_kept = gave_up.is_err() && second.is_ok();
    if !is_kept {
        eprintln!("the first waiter: {gave_up:?}; the second one: {second:?}");
    }
    is_kept
}

/// A stall of the service ends no session: waiters stay queued and are granted their locks afterwards,
/// holders past their lease deadlines report the loss, and new acquires succeed.
///
/// Several locks, since a waiter that ends does so by what it does at the moment of its deadline: one alone
/// may have luck.
async fn p9_stall(subject: &impl Subject) -> bool {
    let locks = subject.client("holds").await;
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for number in 0..4 {
        let name = format!("promises/p9/{number}");
        holders.push(locks.mutex(&*name).acquire().await.unwrap());
        let waits = subject.client(&format!("waits for {number}")).await.mutex(&*name);
        waiters.push(start_waiting(waits).await);
    }
    // A waiter's silence counts from the end of a look that gets no answer: it begins up to 5 s into the
    // stall, and takes 5 s. With the ttl of 30 s, that is 40 s.
    let stalled = subject.stall(50 * SECOND);
    let losses: Vec<Option<LossCause>> = holders.iter().map(Guard::loss).collect();
    let know = !stalled || losses.iter().all(|loss| *loss == Some(LossCause::Expired));
    drop(holders);
    let mut granted = Vec::new();
    for waiter in waiters {
        granted.push(waiter.await.unwrap().map(|next| next.check(SECOND)));
    }
    let again = locks.mutex("promises/p9/new").acquire().await.map(drop);
    let is_kept = know && granted.iter().all(|next| matches!(next, Ok(Ok(())))) && again.is_ok();
    if !is_kept {
        eprintln!("the holders' losses: {losses:?}; the waiters: {granted:?}; a new request: {again:?}");
    }
    is_kept
}

/// A granted lock is still held after a restart of the service.
async fn p10_durable(subject: &impl Subject) -> Found {
    let held = subject.client("holds").await.mutex("promises/p10").acquire().await.unwrap();
    subject.restart().await;
    let free = subject.client("next").await.mutex("promises/p10").try_acquire().await.unwrap().is_some();
    drop(held);
    if free { Found::NotKept } else { Found::Kept }
}

/// A request that needs a missing ability fails with `AcquireError::Unsupported`.
async fn p11_said_once(subject: &impl Subject) -> bool {
    let locks = subject.client("asks").await;
    let can = locks.capabilities().clone();
    let refused =
        async |lock: lockkeeper::Lock| matches!(lock.acquire().await, Err(AcquireError::Unsupported(_)));
    let name = "promises/p11";
    (can.shared || refused(locks.rw(name).read()).await)
        && (can.permits || refused(locks.semaphore(name, 1)).await)
        && (can.subtree || refused(locks.mutex(name).subtree()).await)
        && (can.multi || refused(locks.all([name, "promises/p11/b"])).await)
        && (can.keep_closed || refused(locks.mutex(name).keep_closed(SECOND)).await)
        && (can.lock_delay || refused(locks.mutex(name).lock_delay(SECOND)).await)
}

/// A release whose call is lost is not reported as successful unless the lock is free. It is retried in the
/// background until the lock is free.
async fn p12_unknown(subject: &impl Subject) -> bool {
    let name = "promises/p12";
    let locks = subject.client("releases").await;
    let held = locks.mutex(name).acquire().await.unwrap();
    if !subject.lose_calls(1) {
        // No call can be lost here, or the client resends it on its next connection: the release must
        // succeed.
        return held.release().await.is_ok();
    }
    let said = held.release().await;
    let honest = match said {
        Err(ReleaseError::Ambiguous { .. }) => true,
        // The lost call was another one (such as a keep-alive), or the library has found out the outcome.
        // Then the lock must be free.
        Ok(()) => {
            let looks = subject.client("looks").await;
            until("somebody looks", async || looks.inspect(name).await.ok()).await.holds.is_empty()
        }
        // Where a connection holds the lock, the end of the connection is known to end the hold.
        Err(ReleaseError::AlreadyLost(lost)) => {
            lost.cause == LossCause::Disconnected && !locks.capabilities().ttl
        }
        Err(_) => false,
    };
    until("the release arrives after all", async || {
        subject.pass(SECOND).await;
        locks.inspect(name).await.unwrap().holds.is_empty().then_some(())
    })
    .await;
    honest
}
