//! All fence histories of 3 tokens × 6 steps, 4 × 4 and 2 × 8 (F-e), in every assignment of modes and slots:
//! 4 × 5 with `cargo xtask test --long`, and 3 × 5 and 4 × 3 in a plain `cargo test`.
//!
//! A step is a section's enter, read, write or check_once. Histories that reach the same state are merged,
//! and their number is counted, so each assertion covers all of them. Mutants of the rule show that the
//! properties detect faults.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::collections::HashMap;

use lockkeeper_core::{ModeKind, Slot, Token};
use lockkeeper_corpus::size;
use lockkeeper_fence::{Action, Marks, Pair, Passed, Refused, Section};

/// A rule under test: the production rule, or a mutant.
type Rule = fn(&mut Marks, Action, Section) -> Result<Passed, Refused>;

/// How a section holds its lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Exclusive,
    Shared,
    Permit(Slot),
    PermitWithoutSlot,
    /// Exclusive, then shared from some step on; a write that was sent before the downgrade still has mode
    /// exclusive (F-c).
    Downgrades,
}

const KINDS: [Kind; 6] = [
    Kind::Exclusive,
    Kind::Shared,
    Kind::Permit(0),
    Kind::Permit(1),
    Kind::PermitWithoutSlot,
    Kind::Downgrades,
];

impl Kind {
    fn section(self, token: usize) -> Section {
        let token = Token::new(token as u64 + 1).expect("a token");
        match self {
            Self::Exclusive | Self::Downgrades => Section::exclusive(token),
            Self::Shared => Section::shared(token),
            Self::Permit(slot) => Section::permit(slot, token).expect("a slot"),
            Self::PermitWithoutSlot => Section::new(ModeKind::Permit, None, token).expect("a section"),
        }
    }

    fn steps(self) -> &'static [Step] {
        match self {
            Self::Downgrades => &[Step::Enter, Step::Read, Step::Write, Step::CheckOnce, Step::EnterShared],
            _ => &[Step::Enter, Step::Read, Step::Write, Step::CheckOnce],
        }
    }

    /// Permits of two slots run concurrently by design: no property holds between them (P3-a).
    fn side_by_side(self, other: Self) -> bool {
        matches!((self, other), (Self::Permit(a), Self::Permit(b)) if a != b)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Enter,
    EnterShared,
    Read,
    Write,
    CheckOnce,
}

/// Sets of tokens are bit masks: token n is bit n - 1.
type Tokens = u8;

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct State {
    marks: Marks,
    /// The tokens whose updates the resource contains.
    data: Tokens,
    /// The content that each section read, and later writes back with its own update.
    copies: [Option<Tokens>; 4],
    entered: Tokens,
    acknowledged: Tokens,
    passed: Tokens,
    passed_as_writer: Tokens,
    /// Whether a section read before it entered, or wrote before it read.
    reckless: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    assignments: u64,
    histories: u64,
    states: u64,
}

/// Runs all histories; `Err` is the first trace that breaks a property.
fn explore(rule: Rule, tokens: usize, steps: u32) -> Result<Count, String> {
    let mut count = Count::default();
    let mut assignment = vec![0; tokens];
    loop {
        let sections: Vec<Kind> = assignment.iter().map(|&kind| KINDS[kind]).collect();
        let (histories, states) = explore_one(rule, &sections, steps)?;
        count.assignments += 1;
        count.histories += histories;
        count.states += states;
        let Some(next) = assignment.iter().rposition(|&kind| kind + 1 < KINDS.len()) else {
            return Ok(count);
        };
        assignment[next] += 1;
        assignment[next + 1..].fill(0);
    }
}

fn explore_one(rule: Rule, sections: &[Kind], steps: u32) -> Result<(u64, u64), String> {
    let mut reached: HashMap<State, (u64, Trace)> =
        HashMap::from([(State::default(), (1, Trace::default()))]);
    let mut states = 1;
    for left in (0..steps).rev() {
        let mut next: HashMap<State, (u64, Trace)> = HashMap::with_capacity(reached.len() * 2);
        let mut ended = 0;
        for (state, (histories, trace)) in reached {
            for (token, kind) in sections.iter().enumerate() {
                for (choice, &step) in kind.steps().iter().enumerate() {
                    let longer = trace.with(token, choice);
                    let after = take(rule, sections, &state, token, step).map_err(|why| {
                        format!("{why}; tokens 1.. are {sections:?}; trace: {}", longer.text(sections))
                    })?;
                    if left == 0 {
                        // A final state is not stored: `take` has checked it, and no step follows.
                        ended += histories;
                    } else {
                        next.entry(after).or_insert((0, longer)).0 += histories;
                    }
                }
            }
        }
        if left == 0 {
            return Ok((ended, states));
        }
        states += next.len() as u64;
        reached = next;
    }
    unreachable!("every set of histories has a last step")
}

/// The steps so far, eight bits each: token and choice.
#[derive(Clone, Copy, Default)]
struct Trace(u64);

impl Trace {
    fn with(self, token: usize, choice: usize) -> Self {
        Self(self.0 << 8 | (token as u64 + 1) << 4 | choice as u64)
    }

    fn text(self, sections: &[Kind]) -> String {
        let steps = self.0.to_be_bytes().into_iter().filter(|byte| *byte != 0);
        let named = steps.map(|byte| {
            let token = usize::from(byte >> 4);
            format!("{token} {:?}", sections[token - 1].steps()[usize::from(byte & 15)])
        });
        named.collect::<Vec<_>>().join(", ")
    }
}

/// Takes one step, and checks every property that it could break.
fn take(rule: Rule, sections: &[Kind], before: &State, token: usize, step: Step) -> Result<State, String> {
    let kind = sections[token];
    let bit: Tokens = 1 << token;
    let mut state = before.clone();
    if step == Step::Read {
        state.copies[token] = Some(state.data);
        state.reckless |= state.entered & bit == 0;
        return Ok(state);
    }
    let (action, section) = match step {
        Step::Enter => (Action::Enter, kind.section(token)),
        Step::EnterShared => (Action::Enter, Kind::Shared.section(token)),
        Step::Write => (Action::Write, kind.section(token)),
        _ => (Action::CheckOnce, kind.section(token)),
    };
    let writer = section.mode() != ModeKind::Shared;
    let answer = rule(&mut state.marks, action, section);

    marks_never_fall(&before.marks, &state.marks)?;
    let later = later_sections(sections, before, token, writer, action);
    match answer {
        Ok(_) if !writer && action != Action::Enter => {
            return Err("a write was accepted by the shared rule".to_owned());
        }
        Ok(_) if later != 0 && action == Action::Enter => {
            return Err("a section entered under a later one's mark".to_owned());
        }
        Ok(_) if later != 0 => return Err("P3: a write was accepted under a later section's mark".to_owned()),
        Ok(passed) if (passed == Passed::Unchanged) != (state.marks == before.marks) => {
            return Err(format!("{passed:?} is not what happened to the marks"));
        }
        Ok(_) => {}
        Err(_) if state.marks != before.marks => return Err("a refusal changed the marks".to_owned()),
        Err(Refused::SharedWrite { .. }) if !writer && action != Action::Enter => return Ok(state),
        Err(Refused::Stale { .. } | Refused::Repeated { .. }) if later != 0 => return Ok(state),
        Err(refused) => return Err(format!("a live section was turned away: {refused}")),
    }
    state.passed |= bit;
    if writer {
        state.passed_as_writer |= bit;
    }
    match action {
        Action::Enter => state.entered |= bit,
        Action::Write => {
            state.reckless |= state.copies[token].is_none();
            state.data = state.copies[token].unwrap_or(0) | bit;
            state.acknowledged |= bit;
        }
        // A `check_once` reads nothing, so it does not take part in the read-modify-write properties.
        Action::CheckOnce => {}
    }
    let alone = !sections.iter().any(|a| sections.iter().any(|b| a.side_by_side(*b)));
    if alone && !state.reckless && state.acknowledged & !state.data != 0 {
        return Err(
            "an acknowledged update was lost among sections that all entered before they read".to_owned()
        );
    }
    Ok(state)
}

/// The sections that have passed and so must make this one stale: for `check_once` also the section itself.
/// Derived from the history alone, not from marks.
fn later_sections(sections: &[Kind], state: &State, token: usize, writer: bool, action: Action) -> Tokens {
    let passed = if writer { state.passed } else { state.passed_as_writer };
    (0..sections.len())
        .filter(|&other| other > token || (other == token && action == Action::CheckOnce))
        .filter(|&other| !sections[token].side_by_side(sections[other]))
        .fold(0, |found, other| found | (passed & (1 << other)))
}

fn marks_never_fall(before: &Marks, after: &Marks) -> Result<(), String> {
    let fell = |a: Pair, b: Pair| b.any < a.any || b.writer < a.writer || b.writer > b.any;
    if fell(before.base, after.base) || (0..3).any(|slot| fell(before.effective(slot), after.effective(slot)))
    {
        return Err(format!("marks fell from {before:?} to {after:?}"));
    }
    Ok(())
}

fn real(marks: &mut Marks, action: Action, section: Section) -> Result<Passed, Refused> {
    marks.check(action, section)
}

/// Runs all histories of the production rule. Checks their number against a closed formula, and the numbers
/// of histories and states against known figures.
fn every_history_keeps_the_promises(tokens: usize, steps: u32, histories: u64, states: u64) {
    let count = explore(real, tokens, steps).unwrap_or_else(|why| panic!("{why}"));
    println!("{tokens} tokens x {steps} steps: {count:?}");
    // For an assignment, the number of choices is the same at every step.
    let mut choices = vec![0];
    for _ in 0..tokens {
        let with = |sum: u64| KINDS.iter().map(move |kind| sum + kind.steps().len() as u64);
        choices = choices.into_iter().flat_map(with).collect();
    }
    let expected: u64 = choices.iter().map(|sum| sum.pow(steps)).sum();
    assert_eq!(count, Count { assignments: choices.len() as u64, histories: expected, states });
    assert_eq!(count.histories, histories);
}

/// The steps of the histories, and the known numbers of histories and of states.
type Known = (u32, u64, u64);

#[test]
fn all_histories_of_three_tokens_keep_the_promises() {
    const SIX: Known = (6, 859_592_340, 671_618);
    let (steps, histories, states) = size((4, 5_360_940, 87_172), SIX, SIX);
    every_history_keeps_the_promises(3, steps, histories, states);
}

#[test]
fn all_histories_of_four_tokens_keep_the_promises() {
    let (steps, histories, states) =
        size((3, 6_036_480, 199_414), (4, 101_233_320, 1_182_117), (5, 1_701_445_680, 5_146_803));
    every_history_keeps_the_promises(4, steps, histories, states);
}

#[test]
fn all_histories_of_two_tokens_keep_the_promises() {
    every_history_keeps_the_promises(2, 8, 949_897_610, 32_427);
}

/// Runs a mutant over 2 tokens × 6 steps: the fewest in which entered sections can lose an update (F-e).
fn found_out(mutant: Rule) -> String {
    let why = explore(mutant, 2, 6).expect_err("the mutant breaks a property");
    println!("{why}");
    why
}

#[test]
fn mutant_without_enter_is_detected() {
    let why = found_out(|marks, action, section| match action {
        Action::Enter => Ok(Passed::Unchanged),
        _ => marks.check(action, section),
    });
    assert!(why.contains("under a later"), "{why}");
}

#[test]
fn mutant_with_one_mark_makes_live_readers_stale() {
    let why = found_out(|marks, action, section| {
        let mut one = marks.clone();
        one.base.writer = one.base.any;
        let _ = one.check(action, section)?;
        marks.check(action, section)
    });
    assert!(why.contains("turned away"), "{why}");
}

#[test]
fn mutant_that_checks_shared_writes_is_detected() {
    let why = found_out(|marks, action, section| match section.mode() {
        ModeKind::Shared => marks.check(Action::Enter, section),
        _ => marks.check(action, section),
    });
    assert!(why.contains("shared rule"), "{why}");
}

#[test]
fn mutant_without_base_marks_for_unseen_slots_is_detected() {
    let why = found_out(|marks, action, section| {
        let Some(_) = section.slot() else { return marks.check(action, section) };
        let base = std::mem::take(&mut marks.base);
        let passed = marks.check(action, section);
        marks.base = base;
        passed
    });
    assert!(why.contains("under a later"), "{why}");
}

#[test]
fn mutant_whose_permit_raises_every_slot_makes_other_slots_stale() {
    let why = found_out(|marks, action, section| match section.slot() {
        Some(_) => marks.check(action, Section::exclusive(section.token())),
        None => marks.check(action, section),
    });
    assert!(why.contains("turned away"), "{why}");
}

#[test]
fn mutant_that_refuses_equal_tokens_is_detected() {
    let why = found_out(|marks, action, section| match (section.mode(), action) {
        (ModeKind::Exclusive, Action::Write) => marks.check(Action::CheckOnce, section),
        _ => marks.check(action, section),
    });
    assert!(why.contains("turned away"), "{why}");
}

#[test]
fn mutant_whose_readers_do_not_raise_is_detected() {
    let why = found_out(|marks, action, section| {
        if section.mode() != ModeKind::Shared {
            return marks.check(action, section);
        }
        let _ = marks.clone().check(action, section)?;
        Ok(Passed::Unchanged)
    });
    assert!(why.contains("under a later"), "{why}");
}
