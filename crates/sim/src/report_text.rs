//! Failure reports: the broken promise, the command that replays the run, and a file with its trace.

use std::path::{Path, PathBuf};

use crate::mutants::Mutant;
use crate::world::{RunReport, run};

/// Formats a failure report: the broken promise and the replay command. Writes the run's trace to a file in
/// `target/sim`.
#[must_use]
pub fn report_text(report: &RunReport, mutant: Option<Mutant>) -> String {
    let Some(failure) = &report.failure else { return String::new() };
    let option = mutant.map(|mutant| format!(" --mutant {}", mutant.name)).unwrap_or_default();
    let written = match write(report.seed, mutant) {
        Ok(file) => format!("  all that happened: {}", file.display()),
        Err(error) => format!("  what happened could not be written: {error}"),
    };
    format!(
        "seed {}: {} is broken at {:.6} s: {}\n  replay: cargo xtask sim --seed {}{option} --trace\n{written}",
        report.seed,
        failure.promise,
        failure.at as f64 / 1e9,
        failure.what,
        report.seed
    )
}

/// Repeats the run and writes its trace to a file.
fn write(seed: u64, mutant: Option<Mutant>) -> std::io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/sim");
    std::fs::create_dir_all(&folder)?;
    let name = match mutant {
        Some(mutant) => format!("seed-{seed}-{}.log", mutant.name),
        None => format!("seed-{seed}.log"),
    };
    let file = folder.canonicalize()?.join(name);
    std::fs::write(&file, run(seed, mutant, true).lines.join("\n"))?;
    Ok(file)
}
