//! Runs chaos: faults on real processes (`crates/chaos`).
//!
//! Responsible for building the command and the harness beside each other, as users build them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::features;
use crate::packages::{CHAOS, COMMAND};
use crate::process::{cargo, run as run_shown};
use crate::{TaskResult, needs};

/// Builds both, and runs the harness with these arguments.
pub(crate) fn run(args: &[OsString]) -> TaskResult {
    needs::install_test_needs(&[CHAOS.to_owned()])?;
    run_shown(cargo().args(["build", "--release", "--quiet", "--package", CHAOS, "--package", COMMAND]))?;
    let target: PathBuf = features::metadata()?.target_directory.into();
    run_shown(Command::new(target.join("release").join(CHAOS)).args(args))
}
