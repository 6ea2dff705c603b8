//! Runs the tests of the workspace.
//!
//! Responsible for the order: what the tests run is installed while they are built. For a reliable count: a
//! run without tests is a failure, and so is a runner that fails although it counted no failed test. And for
//! the record of the run, from which `cargo xtask weight tests` makes its tables.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::TaskResult;
use crate::features::Targets;
use crate::needs::{NEXTEST, install_build_needs, install_test_needs};
use crate::packages::{CHAOS, COMMAND, LAB, NODE, PYTHON};
use crate::process::{TEST_CONFIG, cargo, not_started, run, shown};
use crate::record::{self, Tally, TestPhase};

/// Which tests to run.
#[derive(Args)]
pub(crate) struct Selection {
    /// Only the tests of this package (may be repeated) [default: all packages]
    #[arg(long = "package", short)]
    packages: Vec<String>,
    /// Run exhaustive, random and simulated tests at their longer size
    #[arg(long)]
    long: bool,
    /// Only tests whose name contains one of these texts
    filters: Vec<String>,
}

/// The size of the tests that have several: `lockkeeper_corpus::size`. Without it they are quick.
const SIZE: &str = "LOCKKEEPER_TEST_SIZE";

/// Programs and native modules of other packages that the tests of a package start. With all packages they
/// are built in any case.
const PROGRAMS: [(&str, &[&str]); 3] =
    [(CHAOS, &[COMMAND, NODE, PYTHON]), (COMMAND, &[LAB, "xtask"]), (LAB, &[COMMAND, NODE, PYTHON])];

/// Installs missing programs, runs the selected tests and doctests, and prints the count as the last line of
/// stdout.
pub(crate) fn test(selection: &Selection) -> TaskResult {
    let targets = Targets::of(&selection.packages)?;
    let mut phases = Vec::new();
    let mut timed = |name: &'static str, work: &mut dyn FnMut() -> TaskResult| {
        let (start, cpu) = (Instant::now(), record::cpu_of_children());
        let ended = work();
        phases.push(TestPhase { name, wall: start.elapsed(), cpu: record::cpu_of_children() - cpu });
        ended
    };

    timed("install what the build needs", &mut || {
        NEXTEST.install()?;
        install_build_needs(&selection.packages)
    })?;
    // To install is to wait for the network and the disk most of the time.
    timed("build, install the rest", &mut || {
        std::thread::scope(|scope| {
            let installed = scope.spawn(|| install_test_needs(&selection.packages));
            let built = run(selection.nextest(&targets).arg("--no-run")).and_then(|()| selection.programs());
            installed.join().unwrap_or_else(|_| Err("the installation panicked".to_owned()))?;
            built
        })
    })?;

    let record = record::junit()?;
    // The record of an earlier run must not be counted if this one writes none.
    let _ = fs::remove_file(&record);
    let (mut problems, mut total) = (Vec::new(), Tally::default());
    let mut nextest = selection.nextest(&targets);
    // Ignored are those tests in libraries that need a server, which a plain `cargo test` leaves out.
    // Whether any test ran is checked later, over both runners together.
    nextest.args(["--no-fail-fast", "--no-tests=pass", "--run-ignored=all"]);
    let mut ended = Ok(());
    timed("run", &mut || {
        ended = run(&mut nextest);
        Ok(())
    })?;
    total += counted("tests", ended, record::tally(&record), &mut problems);
    if targets.has_doctests {
        let mut found = (Ok(()), Ok(Tally::default()));
        timed("doctests", &mut || {
            found = run_doctests(&mut selection.doctests(&targets));
            Ok(())
        })?;
        total += counted("doctests", found.0, found.1, &mut problems);
    }
    if total.failed > 0 {
        problems.push(format!("{} of {} tests failed", total.failed, total.run()));
    }
    if total.run() == 0 && problems.is_empty() {
        problems.push("no test ran: is the name in the selection right?".to_owned());
    }
    record::write_phases(&phases)?;
    print!("{}", record::phases_text(&phases));
    println!("{} tests run", total.run());
    println!("{total}");
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

/// Adds to `problems` if a runner gave no count, or failed without a failed test.
fn counted(part: &str, ended: TaskResult, tally: TaskResult<Tally>, problems: &mut Vec<String>) -> Tally {
    match (ended, tally) {
        (ended, Ok(tally)) => {
            println!("{part}: {tally}");
            if let Err(error) = ended
                && tally.failed == 0
            {
                problems.push(format!("{error}, before or beside its tests"));
            }
            tally
        }
        (ended, Err(error)) => {
            problems.push(ended.err().unwrap_or(error));
            Tally::default()
        }
    }
}

impl Selection {
    fn nextest(&self, targets: &Targets) -> Command {
        let mut cargo = cargo();
        cargo.args(["nextest", "run"]).args(TEST_CONFIG);
        targets.choose_tests(&mut cargo);
        cargo.env(SIZE, if self.long { "long" } else { "usual" });
        cargo.args(&self.filters);
        cargo
    }

    fn programs(&self) -> TaskResult {
        let chosen = |package: &str| self.packages.iter().any(|it| it == package);
        for (_, others) in PROGRAMS.into_iter().filter(|(package, _)| chosen(package)) {
            let mut cargo = cargo();
            cargo.arg("build").args(TEST_CONFIG);
            others.iter().for_each(|other| _ = cargo.args(["--package", other]));
            run(&mut cargo)?;
        }
        Ok(())
    }

    /// nextest can't run doctests.
    fn doctests(&self, targets: &Targets) -> Command {
        let mut cargo = cargo();
        cargo.args(["test", "--doc", "--no-fail-fast"]).args(TEST_CONFIG);
        targets.choose_packages(&mut cargo);
        cargo.arg("--").args(&self.filters);
        cargo
    }
}

/// Prints and counts what the doctests print.
fn run_doctests(command: &mut Command) -> (TaskResult, TaskResult<Tally>) {
    eprintln!("$ {}", shown(command));
    let output = match command.stderr(Stdio::inherit()).output() {
        Ok(output) => output,
        Err(error) => return (Err(not_started(command, &error)), Ok(Tally::default())),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let ended = if output.status.success() { Ok(()) } else { Err(format!("`{}` failed", shown(command))) };
    (ended, Ok(text.lines().filter_map(record::libtest).fold(Tally::default(), |sum, one| sum + one)))
}
