//! Long random histories: many sections with random modes, slots and tokens, interleaved at random, one call
//! at a time.
//!
//! Calls are sequential, so each has one correct result: the rule's. A failing history is shrunk to its
//! shortest form.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::cell::Cell;

use lockkeeper_fence::{Action, Marks, ModeKind, Section};
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::test_runner::{Config, TestRunner};

use super::{Subject, ask, runtime, said, token};

const USERS: usize = 3;
/// Few slots and tokens, so that sections interact.
const SLOTS: u32 = 3;
const TOKENS: u64 = 12;
const CALLS: usize = 40;

/// The user, the action and the section.
type Call = (usize, Action, Section);

fn sections() -> impl Strategy<Value = Section> {
    let token = (1..=TOKENS).prop_map(token);
    let kind = prop_oneof![
        3 => Just((ModeKind::Exclusive, None)),
        2 => Just((ModeKind::Shared, None)),
        3 => (0..SLOTS).prop_map(|slot| (ModeKind::Permit, Some(slot))),
        1 => Just((ModeKind::Permit, None)),
    ];
    (kind, token).prop_map(|((mode, slot), token)| Section::new(mode, slot, token).expect("a section"))
}

/// A few sections, and an order in which each takes its next step: enter, write, write again, … A step may
/// also be a `check_once`, and a section may skip its `enter`: the rule defines all these cases.
fn histories() -> impl Strategy<Value = Vec<Call>> {
    let steps = (0..6_usize, prop_oneof![8 => Just(false), 1 => Just(true)]);
    (proptest::collection::vec(sections(), 6), proptest::collection::vec(steps, 1..CALLS)).prop_map(
        |(sections, steps)| {
            let mut begun = [false; 6];
            let call = |(which, once): (usize, bool)| {
                let first = !std::mem::replace(&mut begun[which], true);
                let action = match () {
                    () if once => Action::CheckOnce,
                    () if first || sections[which].mode() == ModeKind::Shared => Action::Enter,
                    () => Action::Write,
                };
                (which % USERS, action, sections[which])
            };
            steps.into_iter().map(call).collect()
        },
    )
}

pub(crate) fn answered_as_the_rule_does<S: Subject>() {
    let runtime = runtime();
    let world = runtime.block_on(S::world());
    let (passed, refused) = (Cell::new(0_u32), Cell::new(0_u32));
    let mut runner =
        TestRunner::new(Config { cases: S::CASES, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&histories(), |calls| {
        runtime.block_on(async {
            let first = S::fresh(&world).await;
            let users = [first.another().await, first.another().await, first];
            let (mut marks, mut number) = (Marks::default(), 0);
            let calls = calls.into_iter().filter(|(_, action, section)| S::takes(*action, *section));
            for (step, (user, action, section)) in (1..).zip(calls) {
                let answer = ask(&users[user], action, section, step).await;
                let expected = marks.check(action, section).map(drop);
                assert_eq!(answer, expected, "step {step}: user {user}, {action} {section:?}");
                if expected.is_ok() && action == Action::Write {
                    number = step;
                }
                let seen = if expected.is_ok() { &passed } else { &refused };
                seen.set(seen.get() + 1);
                assert_eq!(
                    users[(user + 1) % USERS].read().await,
                    number,
                    "step {step}: seen by another user"
                );
            }
            assert_eq!(said(&users[0].marks().await, SLOTS + 1), said(&marks, SLOTS + 1), "the marks");
        });
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    let (passed, refused) = (passed.get(), refused.get());
    println!("{} histories: {passed} calls passed, {refused} were refused", S::CASES);
    assert!(passed > S::CASES && refused > S::CASES, "too few to show anything: {passed}, {refused}");
}
