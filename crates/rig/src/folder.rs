//! A folder for a server's data, log and settings.
//!
//! Responsible for cleaning up: a folder is removed when its test ends. If the test is killed, the next test
//! that makes a folder removes it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::{env, process};

use nix::unistd::{User, geteuid};

/// The user that runs servers which refuse to run as root.
pub(crate) const UNPRIVILEGED: &str = "postgres";

/// The prefix of the names of all folders; the server's name and the pid of the test follow it.
const PREFIX: &str = "lockkeeper-rig-";

/// A folder that is removed when this value is dropped.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    /// `name` helps people to identify the folders of running tests.
    pub(crate) fn new(name: &str) -> Self {
        remove_left();
        Self::within(&env::temp_dir(), name)
    }

    /// In another place than that of temporary files. If the test is killed, the folder stays there.
    pub(crate) fn within(parent: &Path, name: &str) -> Self {
        let prefix = format!("{PREFIX}{name}-{}-", process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
        let folder = folder.unwrap_or_else(|error| panic!("no folder in {}: {error}", parent.display()));
        // Unprivileged servers must be able to traverse the folder.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("our folder is ours");
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The output of the server, of all its starts.
    pub(crate) fn log(&self) -> PathBuf {
        self.path().join("log")
    }
}

/// Removes the folders that ended test processes have left.
fn remove_left() {
    let folders = fs::read_dir(env::temp_dir()).into_iter().flatten().filter_map(Result::ok);
    for folder in folders {
        let name = folder.file_name();
        let words = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').nth(1));
        let Some(pid) = words.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            // Fails if another test removes the folder at the same time, or if it belongs to another user.
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

/// Makes a folder for a server that refuses to run as root: accessible only to its owner, which is set by
/// [`give_away`].
pub(crate) fn make_for_unprivileged(folder: &Path) {
    fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o700)))
        .unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
    give_away(folder);
}

/// Makes [`UNPRIVILEGED`] the owner of `path` if this process is root; otherwise all servers run as this
/// process's user.
pub(crate) fn give_away(path: &Path) {
    if !geteuid().is_root() {
        return;
    }
    let user = User::from_name(UNPRIVILEGED).ok().flatten();
    let user = user.unwrap_or_else(|| {
        panic!("there is no user `{UNPRIVILEGED}`; the Debian package postgresql-common makes it")
    });
    chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
        .unwrap_or_else(|error| panic!("cannot give {} to {UNPRIVILEGED}: {error}", path.display()));
}
