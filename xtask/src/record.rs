//! The record of a test run: nextest's own (JUnit), and how long each phase took.
//!
//! Responsible for counting tests, and for the tables of docs/testing.md.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::ops::{Add, AddAssign};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::TaskResult;
use crate::features;

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
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// A part of a run.
pub(crate) struct TestPhase {
    pub(crate) name: &'static str,
    pub(crate) wall: Duration,
    /// Of the processes that were started in it and have ended.
    pub(crate) cpu: Duration,
}

/// The CPU time of all processes that this one has started and waited for, with theirs.
pub(crate) fn cpu_of_children() -> Duration {
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).expect("the arguments are right");
    let of = |time: TimeVal| Duration::new(time.tv_sec().unsigned_abs(), 1000 * time.tv_usec() as u32);
    of(used.user_time()) + of(used.system_time())
}

/// The file that nextest writes; `.config/nextest.toml` names it. Its folder does not follow
/// `CARGO_TARGET_DIR`.
pub(crate) fn junit() -> TaskResult<PathBuf> {
    Ok(features::metadata()?.workspace_root.join("target/nextest/default/junit.xml").into())
}

/// The file with the phases of the newest run.
fn phases_file() -> TaskResult<PathBuf> {
    Ok(junit()?.with_file_name("phases.md"))
}

pub(crate) fn write_phases(phases: &[TestPhase]) -> TaskResult {
    let file = phases_file()?;
    fs::write(&file, phases_text(phases)).map_err(|error| format!("{}: {error}", file.display()))
}

/// The phases as a table in Markdown.
pub(crate) fn phases_text(phases: &[TestPhase]) -> String {
    let mut text = "| phase | wall, s | CPU, s |\n| --- | --- | --- |\n".to_owned();
    for TestPhase { name, wall, cpu } in phases {
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {name} | {:.0} | {:.0} |", wall.as_secs_f64(), cpu.as_secs_f64());
    }
    text
}

/// One test of the record.
struct Ran {
    binary: String,
    name: String,
    seconds: f64,
    passed: bool,
}

/// Counts the tests of nextest's record.
pub(crate) fn tally(record: &Path) -> TaskResult<Tally> {
    let ran = read(record)?;
    let passed = ran.iter().filter(|test| test.passed).count() as u64;
    Ok(Tally { passed, failed: ran.len() as u64 - passed })
}

fn read(record: &Path) -> TaskResult<Vec<Ran>> {
    let problem =
        |error: &dyn fmt::Display| format!("no record of a test run: {}: {error}", record.display());
    let text = fs::read_to_string(record).map_err(|error| problem(&error))?;
    parse(&text).map_err(|error| problem(&error))
}

fn parse(text: &str) -> Result<Vec<Ran>, roxmltree::Error> {
    let document = roxmltree::Document::parse(text)?;
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let ran = cases.map(|case| {
        let of = |name| case.attribute(name).unwrap_or_default();
        Ran {
            binary: of("classname").to_owned(),
            name: of("name").to_owned(),
            seconds: of("time").parse().unwrap_or(0.0),
            passed: !case
                .children()
                .any(|child| child.has_tag_name("failure") || child.has_tag_name("error")),
        }
    });
    Ok(ran.collect())
}

/// The tables of the newest run in Markdown: its phases, its tests by binary, its slowest tests.
pub(crate) fn tables(slowest: usize) -> TaskResult<String> {
    let mut ran = read(&junit()?)?;
    let mut text = fs::read_to_string(phases_file()?).unwrap_or_default();
    let mut binaries: BTreeMap<&str, (usize, f64, f64)> = BTreeMap::new();
    for test in &ran {
        let (count, sum, longest) = binaries.entry(&test.binary).or_default();
        (*count, *sum, *longest) = (*count + 1, *sum + test.seconds, test.seconds.max(*longest));
    }
    let mut binaries: Vec<_> = binaries.into_iter().collect();
    binaries.sort_by(|(_, (_, a, _)), (_, (_, b, _))| b.total_cmp(a));
    text += "\n| binary | tests | sum, s | longest, s |\n| --- | --- | --- | --- |\n";
    for (binary, (count, sum, longest)) in binaries {
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {binary} | {count} | {sum:.0} | {longest:.1} |");
    }
    ran.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    text += "\n| test | s |\n| --- | --- |\n";
    for Ran { binary, name, seconds, .. } in ran.iter().take(slowest) {
        let _ = writeln!(text, "| {binary} `{name}` | {seconds:.1} |");
    }
    Ok(text)
}

/// Parses `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.01s`.
pub(crate) fn libtest(line: &str) -> Option<Tally> {
    let counts = line.trim().strip_prefix("test result: ")?.split_once(". ")?.1;
    let count =
        |word: &str| counts.split("; ").find_map(|part| part.strip_suffix(word)?.trim().parse::<u64>().ok());
    Some(Tally { passed: count("passed")?, failed: count("failed")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_with_a_failure_or_an_error_is_counted_as_failed() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?>
            <testsuites name="nextest-run" tests="3"><testsuite name="a::b">
            <testcase name="x &lt;1&gt;" classname="a::b" time="0.25"></testcase>
            <testcase name="y" classname="a::b" time="1"><failure type="test failure">text</failure></testcase>
            <testcase name="z" classname="a::b" time="2"><error/></testcase>
            </testsuite></testsuites>"#;
        let ran = parse(text).unwrap();
        assert_eq!(ran.iter().map(|test| test.passed).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!((ran[0].name.as_str(), ran[0].seconds), ("x <1>", 0.25));
    }

    #[test]
    fn doctests_are_counted_by_libtests_summary() {
        let line = "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.01s";
        assert_eq!(libtest(line), Some(Tally { passed: 3, failed: 1 }));
        assert_eq!(libtest("3 passed"), None);
    }

    #[test]
    fn a_missing_record_is_an_error_with_its_path() {
        let error = tally(Path::new("no/such/record.xml")).unwrap_err();
        assert!(error.contains("no/such/record.xml"), "{error}");
    }
}
