//! Many concurrent users. Each acts as the lock holder, and stalls at random points.
//!
//! The order in which the fence processed the calls is unknown, so the checks are properties that hold in
//! every order.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::Token;
use lockkeeper_fence::{Action, Marks, Refused, Section};
use tokio::sync::Barrier;

use super::{Subject, ask, runtime, said, token};

const USERS: usize = 4;
/// The longest stall, in microseconds: several sections long, so that later sections overtake a stalled user.
const STALL_US: u64 = 2000;

/// Stalls with a probability of one third. The stalls are the injected fault; no assertion depends on their
/// length.
async fn perhaps_stall(random: &mut fastrand::Rng) {
    if random.u8(..3) == 0 {
        tokio::time::sleep(Duration::from_micros(random.u64(..STALL_US))).await;
    } else {
        tokio::task::yield_now().await;
    }
}

/// Each user enters, reads, and writes back the number plus one, each time with a new token. Every
/// acknowledged write must be in the number, and the marks must never fall.
pub(crate) fn no_acknowledged_update_is_lost<S: Subject>() {
    runtime().block_on(async {
        let world = S::world().await;
        let first = S::fresh(&world).await;
        let (next, start) = (Arc::new(AtomicU64::new(1)), Arc::new(Barrier::new(USERS)));
        let mut users = Vec::new();
        for seed in 0..USERS as u64 {
            let user = first.another().await;
            let (next, start) = (Arc::clone(&next), Arc::clone(&start));
            users.push(tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(seed);
                start.wait().await;
                let mut acknowledged = 0;
                for _ in 0..S::ROUNDS {
                    let section = Section::exclusive(token(next.fetch_add(1, Ordering::SeqCst)));
                    perhaps_stall(&mut random).await;
                    if user.enter(section).await.is_err() {
                        continue;
                    }
                    perhaps_stall(&mut random).await;
                    let number = user.read().await;
                    perhaps_stall(&mut random).await;
                    acknowledged += u64::from(user.write(section, number + 1).await.is_ok());
                }
                acknowledged
            }));
        }
        let watched = first.another().await;
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let watcher = tokio::spawn(async move {
            let (mut before, mut looks) = (Marks::default(), 0_u64);
            while !ended.load(Ordering::SeqCst) {
                let now = watched.marks().await;
                assert!(
                    now.base.any >= before.base.any && now.base.writer >= before.base.writer,
                    "the marks fell: {before:?}, then {now:?}"
                );
                (before, looks) = (now, looks + 1);
                tokio::task::yield_now().await;
            }
            looks
        });
        let mut acknowledged = 0;
        for user in users {
            acknowledged += user.await.expect("a user");
        }
        over.store(true, Ordering::SeqCst);
        let looks = watcher.await.expect("the marks never fell");
        let all = USERS as u64 * S::ROUNDS;
        println!("{acknowledged} of {all} writes acknowledged; {looks} looks at the marks");
        assert_eq!(
            first.read().await,
            acknowledged,
            "an acknowledged update was lost, or a refused one is there"
        );
        assert!(acknowledged > 0, "the last section at least is live");
        assert!(acknowledged < all, "nobody was ever overtaken: this test shows nothing");
    });
}

/// A call as its user observed it. Begin and end are readings of a shared counter, before and after the call.
struct Call {
    began: u64,
    ended: u64,
    action: Action,
    section: Section,
    answer: Result<(), Refused>,
}

/// The rule's result for `late` at a resource that has seen only the call `early`.
fn after(early: &Call, late: &Call) -> Result<(), Refused> {
    let mut marks = Marks::default();
    let _ = marks.check(early.action, early.section);
    marks.check(late.action, late.section).map(drop)
}

/// Marks only rise, and a section that passes with certain marks passes with lower ones, too. So a call that
/// passed must pass after any single call that was acknowledged before it began. And a refusal must be
/// explained by a single call that passed and began before the refusal returned. If calls wait for each other
/// (`WAITS`), the call that explains the refusal may itself have been refused in the end, because of a still
/// higher token.
fn judge<S: Subject>(calls: &[Call]) {
    let turned_away = |call: &Call| S::WAITS && matches!(call.answer, Err(Refused::Stale { .. }));
    for late in calls {
        let told = |early: &Call| early.answer.is_ok() && early.began < late.ended;
        let came = |early: &Call| told(early) || (turned_away(early) && early.began < late.ended);
        match late.answer {
            Ok(()) => {
                for early in calls.iter().filter(|early| told(early) && early.ended < late.began) {
                    let ruled = after(early, late);
                    assert_eq!(
                        ruled,
                        Ok(()),
                        "{} {:?} passed, though {} {:?} had been acknowledged",
                        late.action,
                        late.section,
                        early.action,
                        early.section
                    );
                }
            }
            Err(Refused::SharedWrite { .. }) => assert_eq!(
                Marks::default().check(late.action, late.section).map(drop),
                late.answer,
                "refused for no reason"
            ),
            Err(_) => assert!(
                calls.iter().any(|early| came(early) && after(early, late) == late.answer),
                "{} {:?} was refused for no reason that was ever there: {:?}",
                late.action,
                late.section,
                late.answer
            ),
        }
    }
}

fn random_section(random: &mut fastrand::Rng, token: Token) -> Section {
    match random.u8(..6) {
        0 | 1 => Section::exclusive(token),
        2 | 3 => Section::shared(token),
        slot => Section::permit(slot.into(), token).expect("a slot"),
    }
}

/// Random calls of many concurrent users, in all modes.
pub(crate) fn every_answer_has_its_reason<S: Subject>() {
    runtime().block_on(async {
        let world = S::world().await;
        let first = S::fresh(&world).await;
        let (time, tokens) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
        let mut users = Vec::new();
        for seed in 0..USERS as u64 {
            let user = first.another().await;
            let (time, tokens) = (Arc::clone(&time), Arc::clone(&tokens));
            users.push(tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut calls = Vec::new();
                for round in 0..S::ROUNDS {
                    let section = random_section(&mut random, token(tokens.fetch_add(1, Ordering::SeqCst)));
                    for action in [Action::Enter, Action::Write, Action::Write, Action::CheckOnce] {
                        if !S::takes(action, section) {
                            continue;
                        }
                        perhaps_stall(&mut random).await;
                        let began = time.fetch_add(1, Ordering::SeqCst);
                        let answer = ask(&user, action, section, round).await;
                        let ended = time.fetch_add(1, Ordering::SeqCst);
                        calls.push(Call { began, ended, action, section, answer });
                    }
                }
                calls
            }));
        }
        let mut calls = Vec::new();
        for user in users {
            calls.extend(user.await.expect("a user"));
        }
        judge::<S>(&calls);
        // The final marks must include every acknowledged call: they are at least the marks that this call
        // alone would leave.
        let left = first.marks().await;
        for call in calls.iter().filter(|call| call.answer.is_ok()) {
            let mut seen = Marks::default();
            let _ = seen.check(call.action, call.section).expect("nothing was seen");
            for (own, kept) in said(&seen, 6).into_iter().zip(said(&left, 6)) {
                assert!(own.any <= kept.any && own.writer <= kept.writer, "{own:?} is not in {left:?}");
            }
        }
        let stale = calls.iter().filter(|call| matches!(call.answer, Err(Refused::Stale { .. }))).count();
        let passed = calls.iter().filter(|call| call.answer.is_ok()).count();
        println!("{} calls: {passed} passed, {stale} were stale", calls.len());
        assert!(passed > 0 && stale > 0, "too tame to show anything: {passed} passed, {stale} were stale");
    });
}

/// Many users call `check_once` with the same token: exactly one passes.
pub(crate) fn check_once_lets_one_of_many_through<S: Subject>() {
    const MANY: usize = 8;
    let section = Section::exclusive(token(7));
    runtime().block_on(async {
        let world = S::world().await;
        let first = S::fresh(&world).await;
        let start = Arc::new(Barrier::new(MANY));
        let mut users = Vec::new();
        for _ in 0..MANY {
            let (user, start) = (first.another().await, Arc::clone(&start));
            users.push(tokio::spawn(async move {
                start.wait().await;
                user.check_once(section).await
            }));
        }
        let mut answers = Vec::new();
        for user in users {
            answers.push(user.await.expect("a user"));
        }
        let repeated = Err(Refused::Repeated { token: token(7) });
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| **answer == repeated).count(), MANY - 1, "{answers:?}");
    });
}
