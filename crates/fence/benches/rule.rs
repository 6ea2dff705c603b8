//! The cost of the pure check, [`Marks::check`]. Target: at most 200 ns.
//!
//! `cargo bench -p lockkeeper-fence --bench rule`. Prints nanoseconds per check; no assertion, since the
//! result depends on the machine's load.

use std::hint::black_box;
use std::time::Instant;

use lockkeeper_core::Token;
use lockkeeper_fence::{Action, Marks, Section};

/// Checks per sample, so that the cost of reading the clock is negligible.
const BATCH: u64 = 1000;
const SAMPLES: usize = 2000;

fn token(value: u64) -> Token {
    Token::new(value).expect("a token")
}

fn permit(number: u64) -> Section {
    let slot = u32::try_from(number % 8).expect("small");
    Section::permit(slot, token(number)).expect("a slot")
}

#[expect(clippy::print_stdout, reason = "a bench prints its figures")]
fn main() {
    type Case = (&'static str, Action, fn(u64) -> Section);
    let cases: [Case; 5] = [
        ("an equal token", Action::Write, |_| Section::exclusive(token(1 << 50))),
        ("a rising token", Action::Enter, |number| Section::exclusive(token(number))),
        ("a stale token", Action::Write, |_| Section::exclusive(token(1))),
        ("a rising reader", Action::Enter, |number| Section::shared(token(number))),
        ("a permit of one of 8 slots", Action::Write, permit),
    ];
    println!("nanoseconds per check, p50 and p99 of {SAMPLES} batches of {BATCH}");
    for (what, action, section) in cases {
        let mut marks = Marks::default();
        let _ = marks.check(Action::Enter, Section::exclusive(token(2))).expect("never seen");
        let mut count = 3;
        let mut samples: Vec<u128> = (0..SAMPLES)
            .map(|_| {
                let begun = Instant::now();
                for _ in 0..BATCH {
                    count += 1;
                    let _ = black_box(marks.check(black_box(action), section(black_box(count))));
                }
                begun.elapsed().as_nanos() / u128::from(BATCH)
            })
            .collect();
        samples.sort_unstable();
        println!("{what:>28}: {:>5} {:>5}", samples[SAMPLES / 2], samples[SAMPLES * 99 / 100]);
    }
}
