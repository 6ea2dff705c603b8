//! Where a server keeps its data, its log and its settings.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::unistd::{User, geteuid};

/// The user that servers run as which refuse to be root.
pub(crate) const UNPRIVILEGED: &str = "postgres";

/// A folder that is removed when this is dropped.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    /// `name` is for people who look at what a test leaves while it runs.
    pub(crate) fn new(name: &str) -> Self {
        let prefix = format!("lockkeeper-rig-{name}-");
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir();
        let folder = folder.expect("a folder can be made among the temporary files");
        // Servers that are not root must be able to pass.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("our folder is ours");
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// What the server has said, over all its starts.
    pub(crate) fn log(&self) -> PathBuf {
        self.path().join("log")
    }
}

/// Makes an empty folder that a server owns which refuses to be root.
pub(crate) fn make_for_unprivileged(folder: &Path) {
    fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o700)))
        .unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
    give_away(folder);
}

/// Gives `path` to [`UNPRIVILEGED`] where we are root; else everything runs as we do.
fn give_away(path: &Path) {
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
