//! Scenarios for admission, and a property test with random sections.

use lockkeeper_core::{ModeKind, Token};
use proptest::prelude::*;

use super::*;

fn token(value: u64) -> Token {
    Token::new(value).expect("a token")
}

fn writer(value: u64) -> Section {
    Section::exclusive(token(value))
}

fn reader(value: u64) -> Section {
    Section::shared(token(value))
}

fn permit(slot: u32, value: u64) -> Section {
    Section::permit(slot, token(value)).expect("a slot")
}

/// A `Door`, and the outcomes that its last call returned.
#[derive(Default)]
struct Watched {
    door: Door,
    answers: Vec<WaitOutcome>,
}

impl Watched {
    fn knock(&mut self, section: Section) -> Result<Knock, Refused> {
        let action = if section.mode() == ModeKind::Shared { Action::Enter } else { Action::Write };
        self.door.knock(action, section, &mut self.answers)
    }

    #[track_caller]
    fn comes_in(&mut self, section: Section) -> AdmissionId {
        match self.knock(section) {
            Ok(Knock::Inside(id)) => id,
            other => panic!("{section:?}: {other:?}"),
        }
    }

    #[track_caller]
    fn waits(&mut self, section: Section) -> AdmissionId {
        match self.knock(section) {
            Ok(Knock::Waits(id)) => id,
            other => panic!("{section:?}: {other:?}"),
        }
    }

    #[track_caller]
    fn leaves(&mut self, id: AdmissionId) -> Vec<WaitOutcome> {
        self.answers.clear();
        self.door.leave(id, &mut self.answers);
        self.answers.clone()
    }
}

fn stale(offered: u64, highest: u64) -> Refused {
    Refused::Stale { offered: token(offered), highest: token(highest) }
}

fn let_in(id: AdmissionId) -> WaitOutcome {
    WaitOutcome { id, verdict: Ok(()) }
}

#[test]
fn higher_token_waits_for_the_admitted_lower_one_and_makes_lower_ones_stale_at_once() {
    let mut door = Watched::default();
    let five = door.comes_in(writer(5));
    let again = door.comes_in(writer(5));
    let six = door.waits(writer(6));
    assert_eq!(door.knock(writer(5)), Err(stale(5, 6)), "one more request of the old holder");
    assert_eq!(door.knock(reader(5)), Err(stale(5, 6)));
    assert_eq!(door.leaves(five), []);
    assert_eq!(door.leaves(again), [let_in(six)]);
    assert_eq!(door.knock(writer(5)), Err(stale(5, 6)));
    assert_eq!(door.leaves(six), []);
    assert!(door.door.is_unused());
}

#[test]
fn waiting_section_is_refused_when_a_later_section_arrives() {
    let mut door = Watched::default();
    let five = door.comes_in(writer(5));
    let six = door.waits(writer(6));
    let eight = door.waits(reader(8));
    assert_eq!(door.answers, [WaitOutcome { id: six, verdict: Err(stale(6, 8)) }]);
    let nine = door.waits(reader(9));
    assert_eq!(door.leaves(five), [let_in(eight), let_in(nine)], "readers come in together");
    assert_eq!(door.leaves(six), [], "one that was turned away is no longer there");
}

#[test]
fn readers_are_admitted_together_in_any_token_order() {
    let mut door = Watched::default();
    let nine = door.comes_in(reader(9));
    let seven = door.comes_in(reader(7));
    assert_eq!(door.knock(writer(8)), Err(stale(8, 9)), "a late writer does not slip under a reader");
    let ten = door.waits(writer(10));
    assert_eq!(door.leaves(nine), []);
    assert_eq!(door.leaves(seven), [let_in(ten)]);
}

#[test]
fn slots_run_concurrently_and_a_section_without_a_slot_waits_for_all() {
    let mut door = Watched::default();
    let first = door.comes_in(permit(0, 10));
    let second = door.comes_in(permit(1, 11));
    let next = door.waits(permit(0, 12));
    assert_eq!(door.knock(permit(0, 10)), Err(stale(10, 12)));
    let _ = door.comes_in(permit(1, 11));
    let all = door.waits(writer(13));
    assert_eq!(door.answers, [WaitOutcome { id: next, verdict: Err(stale(12, 13)) }]);
    assert_eq!(door.leaves(first), []);
    assert_eq!(door.leaves(second), [], "one of slot 1 is still inside");
    assert_eq!(door.knock(permit(7, 9)), Err(stale(9, 13)), "a slot never seen");
    assert_eq!(door.door.waiting(), 1);
    assert_eq!(door.leaves(all), [], "one who gives up waiting");
}

#[test]
fn retry_of_check_once_is_admitted() {
    let mut door = Watched::default();
    let once = |door: &mut Watched| door.door.knock(Action::CheckOnce, writer(5), &mut door.answers);
    assert!(matches!(once(&mut door), Ok(Knock::Inside(_))));
    assert!(matches!(once(&mut door), Ok(Knock::Inside(_))), "the durable marks tell that it is one");
    let refused = door.door.knock(Action::Write, reader(5), &mut door.answers);
    assert_eq!(refused, Err(Refused::SharedWrite { action: Action::Write }));
}

#[derive(Clone, Debug)]
enum Step {
    Knock(Section),
    Leave(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let section = (1..8_u64, 0..4_u32).prop_map(|(value, kind)| match kind {
        0 => writer(value),
        1 => reader(value),
        slot => permit(slot, value),
    });
    let step = prop_oneof![
        3 => section.prop_map(Step::Knock),
        2 => any::<prop::sample::Index>().prop_map(Step::Leave),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn admitted_sections_are_compatible_and_every_waiting_section_is_answered(steps in steps()) {
        let mut door = Watched::default();
        // The model: each section, and whether it is admitted.
        let mut there: Vec<(AdmissionId, Section, bool)> = Vec::new();
        let mut waited = 0;
        for step in steps {
            door.answers.clear();
            match step {
                Step::Knock(section) => match door.knock(section) {
                    Ok(Knock::Inside(id)) => there.push((id, section, true)),
                    Ok(Knock::Waits(id)) => {
                        waited += 1;
                        there.push((id, section, false));
                    }
                    Err(_) => prop_assert!(
                        there.is_empty() || door.door.marks != Marks::default(),
                        "a door that nobody came to refuses nobody"
                    ),
                },
                Step::Leave(which) if !there.is_empty() => {
                    let (id, ..) = there.remove(which.index(there.len()));
                    door.door.leave(id, &mut door.answers);
                }
                Step::Leave(_) => {}
            }
            for answer in std::mem::take(&mut door.answers) {
                let at = there.iter().position(|(id, ..)| *id == answer.id).expect("one of ours");
                let (_, section, inside) = &mut there[at];
                prop_assert!(!*inside, "an answer to one who did not wait");
                if answer.verdict.is_ok() {
                    *inside = true;
                } else {
                    let action = if section.mode() == ModeKind::Shared { Action::Enter } else { Action::Write };
                    prop_assert!(door.door.marks.clone().check(action, *section).is_err(), "turned away for nothing");
                    there.remove(at);
                }
            }
            for (id, section, inside) in &there {
                for (other_id, other, other_inside) in &there {
                    prop_assert!(
                        id == other_id || inside != other_inside || together(*section, *other),
                        "{section:?} with {other:?}"
                    );
                }
                // Every waiting section waits for an admitted section with a lower token.
                prop_assert!(
                    *inside || there.iter().any(|(_, other, inside)| {
                        *inside && !together(*section, *other) && other.token() < section.token()
                    }),
                    "{section:?} waits for nobody"
                );
            }
            prop_assert_eq!(door.door.inside().count(), there.iter().filter(|(.., inside)| *inside).count());
            prop_assert_eq!(door.door.waiting(), there.iter().filter(|(.., inside)| !inside).count());
        }
        // In the end all sections leave: every waiting one is admitted on the way, and the `Door` becomes
        // unused.
        let mut came_in = 0;
        while let Some(at) = there.iter().position(|(.., inside)| *inside) {
            let (id, ..) = there.remove(at);
            door.answers.clear();
            door.door.leave(id, &mut door.answers);
            for answer in &door.answers {
                came_in += 1;
                prop_assert!(answer.verdict.is_ok());
                there.iter_mut().filter(|(id, ..)| *id == answer.id).for_each(|(.., inside)| *inside = true);
            }
        }
        prop_assert!(there.is_empty() && door.door.is_unused());
        prop_assert!(came_in <= waited);
    }
}

/// A refused section may leave after its `Door` was dropped and replaced by another one.
#[test]
fn late_leave_does_not_remove_a_section_of_another_door() {
    let section = |token| Section::exclusive(Token::new(token).expect("above zero"));
    let mut answers = Vec::new();
    let mut first = Door::default();
    let Ok(Knock::Inside(_)) = first.knock(Action::Write, section(1), &mut answers) else {
        panic!("it is empty")
    };
    let Ok(Knock::Waits(late)) = first.knock(Action::Write, section(2), &mut answers) else {
        panic!("1 is inside")
    };
    let mut second = Door::default();
    for _ in 0..2 {
        let _ = second.knock(Action::Write, section(4), &mut answers).expect("never seen");
    }
    second.leave(late, &mut answers);
    assert_eq!(second.inside().count(), 2);
}
