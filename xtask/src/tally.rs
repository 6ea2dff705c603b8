//! Counts tests in the output of the test runners.
//!
//! Responsible for the two formats of the summary line, libtest's and nextest's. A line of another format adds
//! nothing to the count, and the caller treats a run without any count as a failure.

use std::fmt;
use std::ops::AddAssign;

use anstream::adapter::strip_str;

/// The program that prints the summary line.
///
/// Only its own lines count: nextest prints the output of a failed test, which contains libtest's summary.
#[derive(Clone, Copy)]
pub(crate) enum Runner {
    /// `cargo test`, doctests too
    Libtest,
    /// `cargo nextest run`
    Nextest,
}

/// Number of tests by result. Tests that a filter excluded are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    pub(crate) fn run(self) -> u64 {
        self.passed + self.failed
    }

    /// Adds the counts of `line`, if it is a summary line of `runner`.
    pub(crate) fn read_line(&mut self, runner: Runner, line: &str) {
        let line = strip_str(line).to_string();
        let counted = match runner {
            Runner::Libtest => libtest(line.trim()),
            Runner::Nextest => nextest(line.trim()),
        };
        if let Some(tally) = counted {
            *self += tally;
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Parses `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.01s`.
fn libtest(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ");
    Some(Tally {
        passed: counts.next()?.strip_suffix(" passed")?.parse().ok()?,
        failed: counts.next()?.strip_suffix(" failed")?.parse().ok()?,
    })
}

/// Parses `Summary [   0.004s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 7 skipped`.
///
/// Tests that neither passed nor were skipped have failed; nextest uses several words for that. The summary of a
/// run that was interrupted begins with `3/5 tests run`.
fn nextest(line: &str) -> Option<Tally> {
    let (_, after_time) = line.strip_prefix("Summary [")?.split_once("] ")?;
    let (run, endings) = after_time.split_once(" run: ")?;
    let run = run.strip_suffix(" tests").or_else(|| run.strip_suffix(" test"))?;
    let run: u64 = run.split('/').next()?.parse().ok()?;
    // The first result is `N passed`. Details in brackets may follow it, and may contain commas.
    let (passed, ending) = endings.split_once(' ')?;
    let passed = passed.parse().ok().filter(|passed| *passed <= run)?;
    ending.starts_with("passed").then_some(Tally { passed, failed: run - passed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(runner: Runner, output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.read_line(runner, line));
        tally
    }

    #[test]
    fn results_of_several_libtest_runs_are_summed() {
        let output = "running 2 tests\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.10s\n";
        assert_eq!(counted(Runner::Libtest, output), Tally { passed: 5, failed: 1 });
    }

    #[test]
    fn a_nextest_summary_counts_all_that_did_not_pass_as_failed() {
        let output = "     Summary [   0.004s] 7 tests run: 4 passed (1 slow, 1 leaky), 1 failed, 1 exec failed, 1 timed out, 9 skipped";
        assert_eq!(counted(Runner::Nextest, output), Tally { passed: 4, failed: 3 });
    }

    #[test]
    fn a_nextest_summary_in_colours_is_read_like_a_plain_one() {
        let output = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.011s] \u{1b}[1m1\u{1b}[0m test run: \u{1b}[1m1\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, 0 skipped";
        assert_eq!(counted(Runner::Nextest, output), Tally { passed: 1, failed: 0 });
    }

    #[test]
    fn an_interrupted_run_counts_the_tests_that_ran() {
        assert_eq!(
            counted(Runner::Nextest, "Summary [ 1.0s] 3/5 tests run: 2 passed, 1 failed"),
            Tally { passed: 2, failed: 1 }
        );
    }

    #[test]
    fn unrecognised_lines_count_nothing() {
        let output = "3 passed\ntest result: unknown\nSummary [ 1.0s] many tests run: some passed\n";
        assert_eq!(counted(Runner::Libtest, output), Tally::default());
        assert_eq!(counted(Runner::Nextest, output), Tally::default());
    }

    #[test]
    fn a_failed_test_that_nextest_shows_is_counted_once() {
        let output = "    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.00s\n\
            Summary [   0.004s] 2 tests run: 1 passed, 1 failed, 0 skipped";
        assert_eq!(counted(Runner::Nextest, output), Tally { passed: 1, failed: 1 });
    }
}
