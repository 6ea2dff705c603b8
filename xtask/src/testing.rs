//! Runs every test of the workspace.
//!
//! Responsible for installing the tests' needs, for running tests and doctests, and for a reliable final count: a
//! run without tests is a failure, and so is a runner that fails although it counted no failed test.

use std::env;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::num::NonZero;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Args;

use crate::TaskResult;
use crate::features;
use crate::needs::install_test_needs;
use crate::process::{cargo, is_installed, not_started, shown};
use crate::tally::{Runner, Tally};

/// If the output is still open this long after the test runner has exited, a leaked process is reported.
const OUTPUT_CLOSES_WITHIN: Duration = Duration::from_secs(30);

/// Which tests to run.
#[derive(Args)]
pub(crate) struct Selection {
    /// Only the tests of this package (may be repeated) [default: all packages]
    #[arg(long = "package", short)]
    packages: Vec<String>,
    /// Only tests whose name contains one of these texts
    filters: Vec<String>,
}

/// Installs missing programs, runs the selected tests and doctests, and prints the count as the last line of stdout.
pub(crate) fn run(selection: &Selection) -> TaskResult {
    install_test_needs()?;
    let with_doctests = selection.with_doctests()?;
    let nextest = is_installed("cargo-nextest");

    let mut commands = if nextest {
        vec![("tests", Runner::Nextest, selection.nextest()?)]
    } else {
        vec![("tests", Runner::Libtest, selection.libtest()?)]
    };
    // nextest can't run doctests; `cargo test` without a target selection includes them.
    if nextest && with_doctests {
        commands.push(("doctests", Runner::Libtest, selection.doctests()?));
    }
    let mut total = Tally::default();
    let mut problems = Vec::new();
    for (part, runner, command) in &mut commands {
        match run_counted(*runner, command) {
            Ok((tally, success)) => {
                println!("{part}: {tally}");
                if !success && tally.failed == 0 {
                    problems.push(format!("`{}` failed before or beside its tests", shown(command)));
                }
                total += tally;
            }
            Err(error) => problems.push(error),
        }
    }
    if total.failed > 0 {
        problems.push(format!("{} of {} tests failed", total.failed, total.run()));
    }
    if total.run() == 0 && problems.is_empty() {
        problems.push("no test ran: is the name in the selection right?".to_owned());
    }
    println!("{} tests run", total.run());
    println!("{total}");
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

impl Selection {
    fn nextest(&self) -> TaskResult<Command> {
        let mut cargo = cargo();
        // Whether any test ran is checked later, over all runners together.
        cargo.args(["nextest", "run", "--no-fail-fast", "--no-tests=pass"]);
        // See `.config/nextest.toml`.
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        cargo.arg(format!("--test-threads={}", 2 * cores));
        self.choose_packages(&mut cargo)?;
        cargo.args(&self.filters);
        Ok(cargo)
    }

    fn libtest(&self) -> TaskResult<Command> {
        let mut cargo = cargo();
        cargo.args(["test", "--no-fail-fast"]);
        self.choose_packages(&mut cargo)?;
        cargo.arg("--").args(&self.filters);
        Ok(cargo)
    }

    fn doctests(&self) -> TaskResult<Command> {
        let mut cargo = cargo();
        cargo.args(["test", "--doc", "--no-fail-fast"]);
        self.choose_packages(&mut cargo)?;
        cargo.arg("--").args(&self.filters);
        Ok(cargo)
    }

    fn choose_packages(&self, cargo: &mut Command) -> TaskResult {
        if self.packages.is_empty() {
            cargo.arg("--workspace");
        }
        for package in &self.packages {
            cargo.args(["--package", package]);
        }
        features::turn_on(cargo, &self.packages)
    }

    /// Whether a selected package can have doctests. Cargo rejects `--doc` for a package without a library.
    fn with_doctests(&self) -> TaskResult<bool> {
        if self.packages.is_empty() {
            return Ok(true);
        }
        let metadata = features::metadata()?;
        for wanted in &self.packages {
            if !metadata.packages.iter().any(|package| package.name.as_str() == wanted) {
                let names: Vec<&str> =
                    metadata.packages.iter().map(|package| package.name.as_str()).collect();
                return Err(format!("there is no package `{wanted}`; there are: {}", names.join(", ")));
            }
        }
        Ok(metadata.packages.iter().any(|package| {
            self.packages.iter().any(|wanted| package.name.as_str() == wanted)
                && package.targets.iter().any(|target| target.is_lib() && target.doctest)
        }))
    }
}

/// Runs `command`, prints its output as it arrives, and counts the tests in it. Also returns whether it succeeded.
///
/// Stdout and stderr use one pipe, so that failure messages appear where they were printed.
fn run_counted(runner: Runner, command: &mut Command) -> TaskResult<(Tally, bool)> {
    eprintln!("$ {}", shown(command));
    let no_pipe = |error| format!("cannot make a pipe: {error}");
    let (reader, writer) = std::io::pipe().map_err(no_pipe)?;
    command.stdout(writer.try_clone().map_err(no_pipe)?).stderr(writer);
    // By default, tools print no colours into a pipe.
    if std::io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", env::var_os("CARGO_TERM_COLOR").unwrap_or_else(|| "always".into()));
    }
    let mut child = command.spawn().map_err(|error| not_started(command, &error))?;
    // `command` holds our copies of the pipe's write end, which would keep the reader waiting forever, so replace
    // them.
    command.stdout(std::process::Stdio::inherit()).stderr(std::process::Stdio::inherit());

    let (counted, tally) = mpsc::channel();
    thread::spawn(move || counted.send(show_and_count(runner, reader)));
    let status = child.wait().map_err(|error| format!("cannot wait for `{}`: {error}", shown(command)))?;
    match tally.recv_timeout(OUTPUT_CLOSES_WITHIN) {
        Ok(Ok(tally)) => Ok((tally, status.success())),
        Ok(Err(error)) => Err(format!("cannot read the output of `{}`: {error}", shown(command))),
        Err(_) => Err(format!(
            "`{}` ended, but {} s later its output is still open: a test left a process behind",
            shown(command),
            OUTPUT_CLOSES_WITHIN.as_secs()
        )),
    }
}

fn show_and_count(runner: Runner, reader: impl std::io::Read) -> std::io::Result<Tally> {
    let mut reader = BufReader::new(reader);
    let mut stdout = std::io::stdout();
    let mut tally = Tally::default();
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        stdout.write_all(&line)?;
        stdout.flush()?;
        tally.read_line(runner, &String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(tally)
}
