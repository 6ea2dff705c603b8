//! Runs the simulator.
//!
//! Responsible for building the simulator with the tests' profile: a seed that a test has printed runs the
//! same code here, and nothing is compiled twice.

use std::ffi::OsString;

use crate::TaskResult;
use crate::process::{TEST_CONFIG, cargo, run as run_shown};

/// Builds the simulator, and runs it with these arguments.
pub(crate) fn run(args: &[OsString]) -> TaskResult {
    let mut cargo = cargo();
    cargo.args(["run", "--quiet", "--profile", "test"]).args(TEST_CONFIG);
    cargo.args(["--package", "lockkeeper-sim", "--"]).args(args);
    run_shown(&mut cargo)
}
