//! Initialised data of servers that take seconds to initialise it.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};

use crate::folder::Folder;
use crate::program::Program;

const COPY: Program = Program { name: "cp", package: "coreutils" };

/// Makes `data` a copy of the template `name` in Cargo's target folder, which the first caller initialises.
/// Outside of a target folder, `data` is initialised each time.
pub(crate) fn copy_of_template(name: &str, data: &Path, initialise: fn(&Path) -> Result<(), String>) {
    let Some(target) = target() else {
        return initialise(data).unwrap_or_else(|why| panic!("{why}"));
    };
    let made = target.join("rig");
    fs::create_dir_all(&made).unwrap_or_else(|error| panic!("cannot make {}: {error}", made.display()));
    let template = made.join(name);
    let lock = File::create(made.join("lock")).expect("the target folder is ours");
    let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error);
    let lock = lock.expect("a file can be locked");
    if !template.exists() {
        // Initialised in a temporary folder first: the server's user can traverse that folder, but perhaps
        // not the target folder.
        let folder = Folder::new("template");
        initialise(&folder.data()).unwrap_or_else(|why| panic!("{why}"));
        let unfinished = made.join("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        copy(&folder.data(), &unfinished);
        fs::rename(&unfinished, &template).expect("the target folder is ours");
    }
    drop(lock);
    copy(&template, data);
}

/// Copies a folder, owners included.
pub(crate) fn copy(from: &Path, to: &Path) {
    let mut command = Command::new(COPY.path());
    command.args(["--archive", "--reflink=auto", "--no-target-directory"]).arg(from).arg(to);
    let output = command.output().expect("cp can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Cargo's target folder, identified by its tag file, if this program is in one.
fn target() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file()).map(Path::to_owned)
}
