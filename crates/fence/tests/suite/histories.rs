//! Every history of a few steps over two tokens and four kinds of section, against the pure rule.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use lockkeeper_fence::{Action, Marks, Section};

use super::{Subject, ask, runtime, said, token};

/// The number of slots used.
const SLOTS: u32 = 2;

fn asks<S: Subject>() -> Vec<(Action, Section)> {
    let sections = [1, 2].map(token).into_iter().flat_map(|token| {
        let [first, second] = [0, 1].map(|slot| Section::permit(slot, token).expect("a slot"));
        [Section::exclusive(token), Section::shared(token), first, second]
    });
    sections
        .flat_map(|section| [Action::Enter, Action::Write, Action::CheckOnce].map(|action| (action, section)))
        .filter(|(action, section)| S::takes(*action, *section))
        .collect()
}

pub(crate) fn answered_as_the_rule_does<S: Subject>() {
    let asks = asks::<S>();
    let histories = asks.len().pow(S::STEPS);
    runtime().block_on(async {
        let world = S::world().await;
        for history in 0..histories {
            let (subject, mut marks, mut number) = (S::fresh(&world).await, Marks::default(), 0);
            let mut rest = history;
            for step in 1..=S::STEPS {
                let (action, section) = asks[rest % asks.len()];
                rest /= asks.len();
                let answer = ask(&subject, action, section, step.into()).await;
                let expected = marks.check(action, section).map(drop);
                assert_eq!(answer, expected, "history {history}, step {step}: {action} {section:?}");
                if expected.is_ok() && action == Action::Write {
                    number = u64::from(step);
                }
            }
            assert_eq!(subject.read().await, number, "history {history}: a refusal has no effect");
            let kept = subject.marks().await;
            assert_eq!(said(&kept, SLOTS + 1), said(&marks, SLOTS + 1), "history {history}: the marks");
        }
    });
    println!("{histories} histories of {} steps", S::STEPS);
}
