//! Runs of seeds in which every promise must hold, divided into tests that run in parallel. A failure prints
//! the replay command.

use lockkeeper_sim::{Coverage, report_text, run};

/// Seeds in each test, with `cargo xtask test` and with its `--long`; for a longer run use `cargo xtask sim
/// --seeds 5000`.
const SEEDS: [u64; 2] = [40, 75];

fn part(number: u64) -> Coverage {
    let seeds = lockkeeper_corpus::size(SEEDS[0], SEEDS[0], SEEDS[1]);
    let mut seen = Coverage::default();
    let mut broken = Vec::new();
    for seed in number * seeds..(number + 1) * seeds {
        let report = run(seed, None, false);
        seen.add(report.seen);
        if report.failure.is_some() {
            broken.push(report_text(&report, None));
        }
    }
    assert!(broken.is_empty(), "{} of {seeds} seeds failed:\n{}", broken.len(), broken.join("\n"));
    // The seeds together must have exercised each promise.
    assert!(
        seen.grants > seeds
            && seen.expired > seeds
            && seen.starts > 2 * seeds
            && seen.lost > seeds
            && seen.elections > seeds,
        "too little happened: {seen:?}"
    );
    // If an update behind the fence had been lost, a seed would have failed (P3).
    assert!(seen.fenced > 0, "no stale section met the fence: was it needed? {seen:?}");
    assert!(
        seen.changes > seeds && seen.wiped > 0 && seen.raised > 0,
        "the members hardly changed, or no disk was lost, or no rules were raised: {seen:?}"
    );
    assert!(
        seen.cached > seeds && seen.recalled > seeds && seen.local > seeds / 2,
        "the clients hardly cached, or no hold was recalled, or no section began by itself (C1): {seen:?}"
    );
    assert!(seen.resumed > 0, "no crowd left work for later (M2): {seen:?}");
    assert!(seen.overwritten > 0, "no update was lost without the fence: was it needed? {seen:?}");
    seen
}

#[test]
fn every_promise_holds_in_the_first_part_of_the_seeds() {
    part(0);
}

#[test]
fn every_promise_holds_in_the_second_part_of_the_seeds() {
    part(1);
}

#[test]
fn every_promise_holds_in_the_third_part_of_the_seeds() {
    part(2);
}

#[test]
fn every_promise_holds_in_the_fourth_part_of_the_seeds() {
    part(3);
}
