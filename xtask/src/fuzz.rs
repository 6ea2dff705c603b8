//! Fuzzes the decoders (`fuzz/`), and keeps the inputs that reach new code.
//!
//! Responsible for small corpora: a run works on a copy, and only inputs that reach code which no smaller
//! input reaches are added to `crates/corpus/inputs`, where the tests replay them. Needs a nightly compiler
//! and `cargo install cargo-fuzz`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::TaskResult;
use crate::process::run;

/// Longest input that is tried, in bytes.
const INPUT_BYTES_MAX: &str = "4096";

/// What to fuzz, and for how long.
#[derive(Args)]
pub(crate) struct Fuzz {
    /// The targets: files of `fuzz/fuzz_targets` without their ending [default: all]
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 1800)]
    seconds: u32,
}

/// Fuzzes each target, and adds what it has found to its corpus.
pub(crate) fn fuzz(choice: &Fuzz) -> TaskResult {
    let targets = if choice.targets.is_empty() { all()? } else { choice.targets.clone() };
    for target in targets {
        let kept = Path::new("crates/corpus/inputs").join(&target);
        let work = Path::new("fuzz/corpus").join(&target);
        fs::create_dir_all(&work).map_err(|error| format!("`{}`: {error}", work.display()))?;
        let seconds = format!("-max_total_time={}", choice.seconds);
        let length = format!("-max_len={INPUT_BYTES_MAX}");
        cargo_fuzz(
            &target,
            &[work.clone(), kept.clone()],
            &[&seconds, &length, "-timeout=10", "-print_final_stats=1"],
        )?;
        cargo_fuzz(&target, &[kept, work], &["-merge=1", "-use_counters=0"])?;
    }
    Ok(())
}

fn cargo_fuzz(target: &str, corpora: &[PathBuf], options: &[&str]) -> TaskResult {
    // Not the cargo that runs this: a directive for another toolchain is the shim's.
    let mut command = Command::new("cargo");
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command.args(["+nightly", "fuzz", "run", target]).args(corpora).arg("--").args(options);
    run(&mut command)
}

fn all() -> TaskResult<Vec<String>> {
    let failed = |error| format!("`fuzz/fuzz_targets`: {error}");
    let mut targets = Vec::new();
    for file in fs::read_dir("fuzz/fuzz_targets").map_err(failed)? {
        let path = file.map_err(failed)?.path();
        targets.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
    }
    targets.sort();
    Ok(targets)
}
