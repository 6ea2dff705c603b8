//! Information in a resource's marks beyond the fence's rule: the mode in which a token was first used, and
//! the requests that a killed gate may have left at the upstream.

use lockkeeper_fence::{Marks, ModeKind, Section, Token};

/// The mode in which the section's token was first used, if the section has another mode. A downgrade to
/// `shared` keeps its token (F-c), so it is no other mode. A permit without a slot counts as exclusive: the
/// rule treats both alike.
pub(crate) fn other_mode(marks: &Marks, section: Section) -> Option<String> {
    let token = Some(section.token());
    if let Some(slot) = section.slot()
        && marks.slots.get(&slot).is_some_and(|pair| pair.writer == token)
    {
        return None;
    }
    // Only a permit can raise the writer of a slot above the writer of the base.
    let first_slot = marks.slots.iter().find(|(_, pair)| pair.writer == token);
    if let Some((slot, _)) = first_slot {
        Some(format!("permit;slot={slot}"))
    } else if marks.base.writer == token {
        section.slot().map(|_| "exclusive".to_owned())
    } else if marks.base.any == token {
        (section.mode() != ModeKind::Shared).then(|| "shared".to_owned())
    } else {
        None
    }
}

/// Whether a section may run beside requests that the previous run left at the upstream; `marks` are the
/// marks that it left.
///
/// Such a request under a permit has the token of its slot's effective writer: a request with a higher token
/// would have waited for its end. The same holds without a slot, for the base's writer. So a section may run
/// if every writer that excludes it has the section's own token. A slot without marks of its own has the
/// base's writer.
pub(crate) fn may_join(marks: &Marks, section: Section) -> bool {
    let is_own = |writer: Option<Token>| writer.is_none_or(|writer| writer == section.token());
    match section.slot() {
        Some(slot) => is_own(marks.effective(slot).writer),
        None => is_own(marks.base.writer) && marks.slots.values().all(|pair| is_own(pair.writer)),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_fence::Action;
    use lockkeeper_fence::door::{AdmissionId, Door, Knock, together};
    use proptest::prelude::*;

    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn permit(slot: u32, number: u64) -> Section {
        Section::permit(slot, token(number)).unwrap()
    }

    #[test]
    fn after_a_kill_only_the_last_writers_may_go_on() {
        let [exclusive, shared] = [Section::exclusive, Section::shared];
        let mut marks = Marks::default();
        assert!(may_join(&marks, exclusive(token(9))), "nobody was ever here");
        let _ = marks.check(Action::Enter, shared(token(5))).unwrap();
        assert!(may_join(&marks, exclusive(token(9))), "readers change nothing");
        let _ = marks.check(Action::Write, exclusive(token(6))).unwrap();
        assert!(may_join(&marks, exclusive(token(6))));
        assert!(!may_join(&marks, exclusive(token(7))));
        assert!(!may_join(&marks, shared(token(7))));
        let _ = marks.check(Action::Write, permit(2, 8)).unwrap();
        assert!(!may_join(&marks, permit(2, 9)));
        assert!(may_join(&marks, permit(2, 8)), "the last writer of this slot");
        assert!(!may_join(&marks, permit(1, 9)), "6 may be at work in slot 1");
        assert!(!may_join(&marks, exclusive(token(9))));
        let mut slots = Marks::default();
        let _ = slots.check(Action::Write, permit(2, 8)).unwrap();
        assert!(may_join(&slots, permit(1, 9)), "another slot, without a base");
    }

    #[test]
    fn token_that_comes_in_another_mode_is_noticed() {
        let [exclusive, shared] = [Section::exclusive(token(7)), Section::shared(token(7))];
        for (first, then, other) in [
            (exclusive, permit(0, 7), Some("exclusive")),
            (permit(0, 7), permit(1, 7), Some("permit;slot=0")),
            (permit(0, 7), exclusive, Some("permit;slot=0")),
            (permit(0, 7), shared, Some("permit;slot=0")),
            (shared, exclusive, Some("shared")),
            (shared, permit(0, 7), Some("shared")),
            (exclusive, shared, None), // a downgrade
            (permit(3, 7), permit(3, 7), None),
            (exclusive, permit(0, 8), None),
        ] {
            let mut marks = Marks::default();
            let _ = marks.check(Action::Write, permit(0, 3)).unwrap();
            let _ = marks.check(Action::Enter, first).unwrap();
            assert_eq!(other_mode(&marks, then).as_deref(), other, "{first:?}, then {then:?}");
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Request(Action, Section),
        End(prop::sample::Index),
        Kill,
        Settled,
    }

    fn steps(kind: impl Strategy<Value = u32> + 'static) -> impl Strategy<Value = Vec<Step>> {
        let section = (1..8_u64, kind).prop_map(|(number, kind)| match kind {
            0 => Section::exclusive(token(number)),
            1 => Section::shared(token(number)),
            slot => permit(slot, number),
        });
        let action = prop_oneof![Just(Action::Enter), Just(Action::Write), Just(Action::CheckOnce)];
        let step = prop_oneof![
            6 => (action, section).prop_map(|(action, section)| Step::Request(action, section)),
            2 => any::<prop::sample::Index>().prop_map(Step::End),
            1 => Just(Step::Kill),
            1 => Just(Step::Settled),
        ];
        prop::collection::vec(step, 1..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Tokens that come in any mode and slot, in runs that end by a kill: nothing begins beside a write
        /// of another section that is at the upstream, of this run or of one before.
        #[test]
        fn no_section_begins_beside_a_write_that_a_killed_gate_left(steps in steps(0..5_u32)) {
            let (mut marks, mut door, mut is_settled) = (Marks::default(), Door::default(), true);
            // Writes at the upstream; those of earlier runs have no id.
            let mut upstream: Vec<(Section, Option<AdmissionId>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Request(action, section) => {
                        let id = match door.knock(action, section, &mut Vec::new()) {
                            Ok(Knock::Inside(id)) => id,
                            Ok(Knock::Waits(id)) => {
                                door.leave(id, &mut Vec::new());
                                continue;
                            }
                            Err(_) => continue,
                        };
                        let may_pass = is_settled || may_join(&marks, section);
                        if !may_pass || marks.check(action, section).is_err() {
                            door.leave(id, &mut Vec::new());
                            continue;
                        }
                        for (other, _) in &upstream {
                            prop_assert!(together(*other, section), "{section:?} beside {other:?}: {marks:?}");
                        }
                        if action == Action::Enter {
                            door.leave(id, &mut Vec::new());
                        } else {
                            upstream.push((section, Some(id)));
                        }
                    }
                    Step::End(which) if !upstream.is_empty() => {
                        if let (_, Some(id)) = upstream.swap_remove(which.index(upstream.len())) {
                            door.leave(id, &mut Vec::new());
                        }
                    }
                    Step::End(_) => {}
                    Step::Kill => {
                        (door, is_settled) = (Door::default(), false);
                        upstream.iter_mut().for_each(|(_, id)| *id = None);
                    }
                    Step::Settled => {
                        is_settled = true;
                        upstream.retain(|(_, id)| id.is_some());
                    }
                }
            }
        }

        /// Tokens that each keep their mode are never refused for it.
        #[test]
        fn token_that_keeps_its_mode_is_not_refused_for_it(
            modes in prop::collection::vec(0..5_u32, 7),
            requests in prop::collection::vec((1..8_u64, any::<bool>()), 1..30),
        ) {
            let mut marks = Marks::default();
            for (number, is_downgraded) in requests {
                let section = match modes[usize::try_from(number).unwrap() - 1] {
                    0 if is_downgraded && marks.base.writer >= Some(token(number)) => Section::shared(token(number)),
                    0 => Section::exclusive(token(number)),
                    1 => Section::shared(token(number)),
                    slot => permit(slot, number),
                };
                prop_assert_eq!(other_mode(&marks, section), None, "{:?} at {:?}", section, marks);
                let _ = marks.check(Action::Enter, section);
            }
        }
    }
}
