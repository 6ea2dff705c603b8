//! The stories end as they say, and no settings break a play.

use super::*;

fn play_with(name: &str, changes: &[(&str, &str)]) -> Trace {
    let mut settings = story(name).unwrap().settings();
    for (key, value) in changes {
        settings.set(key, value).unwrap();
    }
    let trace = play(&settings).unwrap();
    for step in &trace.steps {
        println!("{}", step_line(step));
    }
    println!("{}", outcome_line(&trace.outcome));
    trace
}

/// Plays a story with each fence, and returns verdict and balance of each.
fn outcomes(name: &str) -> Vec<(Verdict, i64)> {
    let fences = story(name).unwrap().fences();
    let outcome = |fence: Fence| play_with(name, &[("fence", fence.name())]).outcome;
    fences.into_iter().map(outcome).map(|outcome| (outcome.verdict, outcome.balance)).collect()
}

#[test]
fn stories_end_as_they_say() {
    use Verdict::{Kept, Lost, Torn};
    // By fence: none, write, enter.
    assert_eq!(outcomes("paused-holder"), [(Lost, 70), (Kept, 20), (Kept, 20)]);
    assert_eq!(outcomes("write-only"), [(Lost, 50), (Lost, 50), (Kept, 20)]);
    assert_eq!(outcomes("enter"), [(Lost, 50), (Lost, 50), (Kept, 20)]);
    assert_eq!(outcomes("delayed-packet"), [(Lost, 70), (Kept, 50), (Kept, 50)]);
    assert_eq!(outcomes("redlock-clock"), [(Lost, 50)]);
    assert_eq!(outcomes("renewed-lease"), [(Kept, 20), (Kept, 20), (Kept, 20)]);
    assert_eq!(outcomes("late-writer"), [(Torn, 70), (Torn, 70), (Kept, 70)]);
    assert_eq!(outcomes("slow-clock"), [(Lost, 50), (Lost, 50), (Kept, 20)]);
    assert_eq!(outcomes("lock-delay"), [(Kept, 20), (Kept, 20), (Kept, 20)]);
}
