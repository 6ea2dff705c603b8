//! Counting tests from what the test runners print.
//!
//! Responsible for the two closing lines we meet, libtest's and nextest's. May not guess: a line of another form
//! counts nothing, and a run that counted nothing is a failure one level up.

use std::fmt;
use std::ops::AddAssign;

use anstream::adapter::strip_str;

/// Who prints the closing lines.
///
/// Only that one's lines count: nextest shows the output of a failed test, and libtest's closing line is in it.
#[derive(Clone, Copy)]
pub(crate) enum Runner {
    /// `cargo test`, doctests too
    Libtest,
    /// `cargo nextest run`
    Nextest,
}

/// How many tests ended how. Tests that a filter left out are not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    pub(crate) fn run(self) -> u64 {
        self.passed + self.failed
    }

    /// Adds what `line` counts, if it is a closing line of `runner`.
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

/// `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.01s`
fn libtest(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ");
    Some(Tally {
        passed: counts.next()?.strip_suffix(" passed")?.parse().ok()?,
        failed: counts.next()?.strip_suffix(" failed")?.parse().ok()?,
    })
}

/// `Summary [   0.004s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 7 skipped`
///
/// What neither passed nor was skipped has failed, whatever nextest calls it. A run that was cut short begins with
/// `3/5 tests run`.
fn nextest(line: &str) -> Option<Tally> {
    let (_, after_time) = line.strip_prefix("Summary [")?.split_once("] ")?;
    let (run, endings) = after_time.split_once(" run: ")?;
    let run = run.strip_suffix(" tests").or_else(|| run.strip_suffix(" test"))?;
    let run: u64 = run.split('/').next()?.parse().ok()?;
    // The first ending is `N passed`; its remarks in brackets may hold commas, and come after the number.
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
    fn a_run_that_was_cut_short_counts_what_ran() {
        assert_eq!(
            counted(Runner::Nextest, "Summary [ 1.0s] 3/5 tests run: 2 passed, 1 failed"),
            Tally { passed: 2, failed: 1 }
        );
    }

    #[test]
    fn lines_of_another_form_count_nothing() {
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
