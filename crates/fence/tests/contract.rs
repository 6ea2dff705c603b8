//! What every fence must do alike: one set of scenarios, instantiated per fence.
//!
//! A further fence costs one constructor. Each is held against the pure rule over all short histories, so that a
//! fence that words the rule anew (in SQL, in a script) can't differ from it.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use lockkeeper_core::Token;
use lockkeeper_fence::{Action, FileError, FileFence, Marks, MemoryFence, Refused, Section};

/// One resource behind a fence, holding a number. Refusals are answers; anything else that fails ends the test.
trait Subject: Clone + Send + 'static {
    /// A resource never seen. A clone is another user of the same one.
    fn fresh() -> Self;
    fn enter(&self, section: Section) -> Result<(), Refused>;
    fn read(&self) -> u64;
    fn write(&self, section: Section, number: u64) -> Result<(), Refused>;
    fn check_once(&self, section: Section) -> Result<(), Refused>;
}

#[derive(Clone)]
struct Memory(Arc<(MemoryFence, AtomicU64)>);

impl Subject for Memory {
    fn fresh() -> Self {
        Self(Arc::new((MemoryFence::new(), AtomicU64::new(0))))
    }

    fn enter(&self, section: Section) -> Result<(), Refused> {
        self.0.0.enter("number", section)
    }

    fn read(&self) -> u64 {
        self.0.1.load(Ordering::SeqCst)
    }

    fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        self.0.0.write("number", section, || self.0.1.store(number, Ordering::SeqCst))
    }

    fn check_once(&self, section: Section) -> Result<(), Refused> {
        self.0.0.check_once("number", section, || ())
    }
}

#[derive(Clone)]
struct File {
    fence: FileFence,
    /// Removed with the last clone.
    _dir: Arc<tempfile::TempDir>,
}

fn refusal<T>(result: Result<T, FileError>) -> Result<T, Refused> {
    result.map_err(|error| match error {
        FileError::Refused(refused) => refused,
        other => panic!("{other}: {other:?}"),
    })
}

impl Subject for File {
    fn fresh() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let fence = FileFence::new(dir.path().join("number")).expect("a fence");
        Self { fence, _dir: Arc::new(dir) }
    }

    fn enter(&self, section: Section) -> Result<(), Refused> {
        refusal(self.fence.enter(section))
    }

    fn read(&self) -> u64 {
        let bytes = refusal(self.fence.read()).expect("no refusal").unwrap_or_else(|| b"0".to_vec());
        String::from_utf8(bytes).expect("text").parse().expect("a number, never torn")
    }

    fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        refusal(self.fence.write(section, number.to_string().as_bytes()))
    }

    fn check_once(&self, section: Section) -> Result<(), Refused> {
        refusal(self.fence.check_once(section, || ()))
    }
}

fn token(value: u64) -> Token {
    Token::new(value).expect("a token")
}

/// Every history of `steps` steps over two tokens and five kinds of section, step by step against the pure rule.
fn answers_as_the_rule_does<S: Subject>(steps: u32) {
    let sections: Vec<Section> = [1, 2]
        .map(token)
        .into_iter()
        .flat_map(|token| {
            let slots = [0, 1].map(|slot| Section::permit(slot, token).expect("a slot"));
            [Section::exclusive(token), Section::shared(token), slots[0], slots[1]]
        })
        .collect();
    let asks: Vec<(Action, Section)> = [Action::Enter, Action::Write, Action::CheckOnce]
        .into_iter()
        .flat_map(|action| sections.iter().map(move |section| (action, *section)))
        .collect();
    let histories = asks.len().pow(steps);
    for history in 0..histories {
        let (subject, mut marks, mut number) = (S::fresh(), Marks::default(), 0);
        let mut rest = history;
        for step in 1..=steps {
            let (action, section) = asks[rest % asks.len()];
            rest /= asks.len();
            let answer = match action {
                Action::Enter => subject.enter(section),
                Action::Write => subject.write(section, u64::from(step)),
                Action::CheckOnce => subject.check_once(section),
            };
            let expected = marks.check(action, section).map(drop);
            assert_eq!(answer, expected, "history {history}, step {step}: {action} {section:?}");
            if expected.is_ok() && action == Action::Write {
                number = u64::from(step);
            }
            assert_eq!(subject.read(), number, "history {history}, step {step}: a refusal has no effect");
        }
    }
    println!("{histories} histories of {steps} steps");
}

/// Threads that all believe they hold the lock: each enters, reads and writes back one more, with a token of its
/// own. Every acknowledged write must be in the number.
fn no_acknowledged_update_is_lost<S: Subject>(threads: u64, rounds: u64) {
    let subject = S::fresh();
    let next = Arc::new(AtomicU64::new(1));
    let start = Arc::new(Barrier::new(usize::try_from(threads).expect("few")));
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (subject, next, start) = (subject.clone(), Arc::clone(&next), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                let mut acknowledged = 0;
                for _ in 0..rounds {
                    let section = Section::exclusive(token(next.fetch_add(1, Ordering::SeqCst)));
                    if subject.enter(section).is_err() {
                        continue;
                    }
                    let number = subject.read();
                    thread::yield_now();
                    acknowledged += u64::from(subject.write(section, number + 1).is_ok());
                }
                acknowledged
            })
        })
        .collect();
    let acknowledged: u64 = workers.into_iter().map(|worker| worker.join().expect("a worker")).sum();
    println!("{acknowledged} of {} writes acknowledged", threads * rounds);
    assert_eq!(subject.read(), acknowledged);
    assert!(acknowledged > 0, "the last section at least is live");
}

/// The same token from many threads: exactly one effect.
fn check_once_lets_one_of_many_through<S: Subject>() {
    let subject = S::fresh();
    let start = Arc::new(Barrier::new(8));
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (subject, start) = (subject.clone(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                subject.check_once(Section::exclusive(token(7)))
            })
        })
        .collect();
    let answers: Vec<_> = workers.into_iter().map(|worker| worker.join().expect("a worker")).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
    let repeated = Err(Refused::Repeated { token: token(7) });
    assert_eq!(answers.iter().filter(|answer| **answer == repeated).count(), 7, "{answers:?}");
}

#[test]
fn the_memory_fence_answers_as_the_rule_does() {
    answers_as_the_rule_does::<Memory>(3);
}

#[test]
fn the_file_fence_answers_as_the_rule_does() {
    answers_as_the_rule_does::<File>(2);
}

#[test]
fn the_memory_fence_loses_no_acknowledged_update() {
    no_acknowledged_update_is_lost::<Memory>(8, 2000);
}

#[test]
fn the_file_fence_loses_no_acknowledged_update() {
    no_acknowledged_update_is_lost::<File>(4, 50);
}

#[test]
fn check_once_of_the_memory_fence_lets_one_of_many_through() {
    check_once_lets_one_of_many_through::<Memory>();
}

#[test]
fn check_once_of_the_file_fence_lets_one_of_many_through() {
    check_once_lets_one_of_many_through::<File>();
}

#[test]
fn resources_of_a_memory_fence_are_apart() {
    let fence = MemoryFence::new();
    fence.enter("a", Section::exclusive(token(9))).expect("never seen");
    fence.enter("b", Section::exclusive(token(1))).expect("never seen");
    assert_eq!(fence.marks("c"), Marks::default());
    assert_eq!(fence.marks("a").base.any, Some(token(9)));
    // An effect may use another resource of the same fence, and its result comes back.
    let inner =
        fence.write("a", Section::exclusive(token(9)), || fence.enter("b", Section::exclusive(token(2))));
    assert_eq!(inner, Ok(Ok(())));
}

#[test]
fn a_panic_in_an_effect_leaves_the_memory_fence_usable() {
    let fence = Arc::new(MemoryFence::new());
    let panicking = Arc::clone(&fence);
    let ended = thread::spawn(move || {
        let _ = panicking.write("a", Section::exclusive(token(2)), || panic!("the effect fails"));
    });
    assert!(ended.join().is_err());
    assert!(matches!(fence.enter("a", Section::exclusive(token(1))), Err(Refused::Stale { .. })));
    fence.enter("a", Section::exclusive(token(3))).expect("live");
}
