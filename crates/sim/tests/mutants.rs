//! Each built-in fault must be found by a check of a promise that it breaks. Checks that find no built-in
//! fault would prove nothing.

use lockkeeper_sim::{mutants, run};

/// Each mutant must be found within this many seeds.
const SEEDS: u64 = 200;

fn hunt(half: usize) {
    let mut missed = Vec::new();
    for mutant in mutants::ALL.iter().skip(half).step_by(2) {
        let found = std::iter::once(mutant.seed)
            .chain(0..SEEDS)
            .find_map(|seed| Some((seed, run(seed, Some(*mutant), false).failure?)));
        match found {
            None => missed.push(format!("{}: not found in {SEEDS} seeds", mutant.name)),
            Some((seed, failure)) if !mutant.caught_by.contains(&failure.promise.as_str()) => {
                missed.push(format!(
                    "{}: found as {}, not as {:?}: {}\n  replay: cargo xtask sim --seed {seed} --mutant {} --trace",
                    mutant.name, failure.promise, mutant.caught_by, failure.what, mutant.name
                ));
            }
            Some(_) => {}
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn mutants_at_even_positions_are_found() {
    hunt(0);
}

#[test]
fn mutants_at_odd_positions_are_found() {
    hunt(1);
}

#[test]
fn mutant_names_are_unique() {
    let mut names: Vec<&str> = mutants::ALL.iter().map(|mutant| mutant.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), mutants::ALL.len());
}
