//! A run depends only on its seed: it has the same events in the same order, in this process and in another.

use std::process::Command;

use lockkeeper_sim::{mutants, run};

const SEEDS: [u64; 4] = [3, 17, 101, 4_000_000_007];

#[test]
fn a_seed_repeats_its_run() {
    for seed in SEEDS {
        let (first, second) = (run(seed, None, true), run(seed, None, true));
        let differs = first.lines.iter().zip(&second.lines).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!((first.hash, first.events), (second.hash, second.events), "seed {seed}");
    }
}

#[test]
fn a_seed_repeats_its_run_in_a_new_process() {
    for seed in SEEDS {
        let report = run(seed, None, false);
        let output = Command::new(env!("CARGO_BIN_EXE_lockkeeper-sim"))
            .args(["--seed", &seed.to_string()])
            .output()
            .expect("the simulator starts");
        let told = String::from_utf8_lossy(&output.stdout);
        let expected = format!("seed {seed}: {} events, trace {:016x}", report.events, report.hash);
        assert!(told.contains(&expected), "expected {expected:?} in:\n{told}");
    }
}

#[test]
fn different_seeds_give_different_runs() {
    assert_ne!(run(1, None, false).hash, run(2, None, false).hash);
}

#[test]
fn a_failure_report_names_the_promise_and_the_replay_command() {
    let mutant = mutants::find("no-fence").expect("it is in the list");
    let seed = (0..200).find(|&seed| run(seed, Some(mutant), false).failure.is_some());
    let seed = seed.expect("200 seeds find it").to_string();
    let replay = || {
        let args = ["--seed", &seed, "--mutant", "no-fence"];
        let output = Command::new(env!("CARGO_BIN_EXE_lockkeeper-sim")).args(args).output();
        let output = output.expect("the simulator starts");
        assert!(!output.status.success(), "a finding is a failure");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let told = replay();
    assert!(told.contains(&format!("seed {seed}: P3 is broken at ")), "{told}");
    assert!(told.contains(&format!("cargo xtask sim --seed {seed} --mutant no-fence --trace")), "{told}");
    let line = |text: &str| text.lines().find(|line| line.contains(", trace ")).map(str::to_owned);
    assert_eq!(line(&told), line(&replay()));
}
