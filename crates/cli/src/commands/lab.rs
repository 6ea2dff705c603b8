//! `pitfalls`, `conformance`: become `lockkeeper-lab`, a program of its own because it contains what starts
//! servers of other projects.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::exit::{Failure, NOT_EXECUTABLE, NOT_FOUND};

const LAB: &str = "lockkeeper-lab";

/// Replaces this process: the lab's output and exit codes are those of the command.
pub(super) fn lab(experiment: &str, args: &[OsString]) -> Failure {
    let beside = std::env::current_exe().map(|own| own.with_file_name(LAB)).ok().filter(|lab| lab.is_file());
    let lab = beside.unwrap_or_else(|| LAB.into());
    let error = Command::new(&lab).arg(experiment).args(args).exec();
    if error.kind() == ErrorKind::NotFound {
        return Failure::new(
            NOT_FOUND,
            format!(
                "`{experiment}` is a part of the program `lockkeeper-lab`, which is neither beside this program nor in \
                 PATH; the packages contain it, and in the source tree `cargo build --release -p lockkeeper-lab` \
                 builds it"
            ),
        );
    }
    Failure::new(NOT_EXECUTABLE, format!("`{}` can't be executed: {error}", lab.display()))
}
