//! The real disk: a directory with one owner.
//!
//! Responsible for: no other process owns the data directory while this one lives, no other user may read the
//! files that are created in it, and "durable" has the meaning that the storage relies on. Does not interpret
//! the content of files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper_replica::disk::{Disk, DiskFile};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// The file whose flock is the ownership. The file stays when the process ends; the flock doesn't.
const LOCK: &str = "lock";
/// Other users of the machine have no access: the data contain the names of clients and locks, and values.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The unit in which the system counts the blocks of a file.
const BLOCK_BYTES: u64 = 512;

/// Why a data directory can't be owned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Another process owns the directory, or this process opens it twice.
    #[error(
        "the data directory `{}` is in use by another process{}; a node needs a directory of its own: end that \
         process, or give another directory",
        path.display(), pid.map(|pid| format!(", pid {pid}")).unwrap_or_default()
    )]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// The process that uses the directory, if known.
        pid: Option<u32>,
    },
    /// The system refused a step.
    #[error("cannot {doing} `{}`{}", path.display(), advice(source))]
    Io {
        /// The step, as a verb.
        doing: &'static str,
        /// The file or directory concerned.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The bytes of the files of a data directory, and those that are free on its disk for this process. Blocks.
pub(crate) fn usage(path: &Path) -> io::Result<(u64, u64)> {
    let used = fs::read_dir(path)?.map(|entry| match entry?.metadata() {
        Ok(file) => Ok(file.blocks() * BLOCK_BYTES),
        // A part of the log that was removed just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    });
    let used = used.sum::<io::Result<u64>>()?;
    let disk = nix::sys::statvfs::statvfs(path)?;
    Ok((used, disk.blocks_available() * disk.fragment_size()))
}

/// Advice on common faults; the cause itself is the error's source.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            ": not allowed; the data directory must belong to the user that the node runs as"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            ": a part of the path is not a directory"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": the disk is full; free space",
        io::ErrorKind::ReadOnlyFilesystem => ": the filesystem is mounted read-only",
        _ => "",
    }
}

/// A data directory that this process owns, until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct DataDirectory {
    inner: Arc<OpenDirectory>,
}

#[derive(Debug)]
struct OpenDirectory {
    path: PathBuf,
    /// The open directory, to sync its entries.
    directory: File,
    /// The flock, held until the last clone is dropped.
    owner: Flock<File>,
}

impl DataDirectory {
    /// Takes ownership of the directory at `path`. A missing directory is created, readable for its user
    /// only.
    ///
    /// # Errors
    /// [`DirectoryError::InUse`], without waiting, if the directory has an owner; otherwise the system's
    /// error.
    pub fn own(path: impl Into<PathBuf>) -> Result<Self, DirectoryError> {
        let path = path.into();
        if !path.is_dir() {
            make(&path, sync).map_err(io_error("make the data directory", &path))?;
        }
        let directory = File::open(&path).map_err(io_error("open the data directory", &path))?;
        let lock = path.join(LOCK);
        let file = options()
            .create(true)
            .truncate(false)
            .open(&lock)
            .map_err(io_error("open the lock file", &lock))?;
        let mut owner = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(owner) => owner,
            Err((file, Errno::EWOULDBLOCK)) => {
                return Err(DirectoryError::InUse { path, pid: written_pid(&file) });
            }
            Err((_, errno)) => return Err(io_error("lock", &lock)(errno.into())),
        };
        // The pid only names the owner in error messages.
        owner
            .set_len(0)
            .and_then(|()| writeln!(owner, "{}", std::process::id()))
            .map_err(io_error("write", &lock))?;
        Ok(Self { inner: Arc::new(OpenDirectory { path, directory, owner }) })
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Whether the directory's path still leads to the lock file that this process holds. It does not if the
    /// directory was deleted, moved or replaced; then another process could own the directory at that path. A
    /// path that can't be checked counts as in place.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        match (fs::metadata(self.file(LOCK)), self.inner.owner.metadata()) {
            (Ok(there), Ok(owned)) => (there.dev(), there.ino()) == (owned.dev(), owned.ino()),
            (Err(error), _) => {
                !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            }
            (Ok(_), Err(_)) => true,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.inner.path.join(name)
    }
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError + use<> {
    let path = path.to_owned();
    move |source| DirectoryError::Io { doing, path, source }
}

/// The names in a directory, without those that mean nothing: the lock file, and what a new file system
/// contains. Empty if there is no such directory.
///
/// # Errors
/// The directory can't be read.
pub(crate) fn names_in(path: &Path) -> Result<Vec<String>, DirectoryError> {
    let read = || -> io::Result<Vec<String>> {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.filter(|name| !name.as_ref().is_ok_and(|name| name == LOCK || name == "lost+found")).collect()
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(io_error("read", path)),
    }
}

/// Creates a directory and its missing ancestors, durably: a new entry is synced in its parent before
/// anything is created below it. `sync` makes the entries of a directory durable.
fn make(path: &Path, mut sync: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|it| !it.as_os_str().is_empty() && !it.is_dir()).collect();
    for directory in missing.into_iter().rev() {
        match DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
            // Another process has created the directory meanwhile, and may not have synced its entry yet:
            // this process syncs the entry too.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            made => made?,
        }
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync(parent.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(FILE_MODE);
    options
}

fn written_pid(file: &File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

impl Disk for DataDirectory {
    type File = DataFile;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.inner.path)? {
            let entry = entry?;
            // Skips the lock file, and names that aren't UTF-8 or are no regular files: the storage creates
            // none of these.
            match entry.file_name().into_string() {
                Ok(name) if name != LOCK && entry.file_type()?.is_file() => names.push(name),
                _ => {}
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<DataFile> {
        options().create_new(true).open(self.file(name)).map(DataFile)
    }

    fn open(&self, name: &str) -> io::Result<DataFile> {
        options().open(self.file(name)).map(DataFile)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.file(from), self.file(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.file(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.inner.directory.sync_all()
    }
}

/// An open file of a [`DataDirectory`].
#[derive(Debug)]
pub struct DataFile(File);

impl DataFile {
    /// Opens a file outside of the data directory for reading.
    pub(crate) fn elsewhere(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }
}

impl DiskFile for DataFile {
    fn size(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Whether the error means a full disk: that is no bug, so the process exits with a message and does not
/// abort.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Aborts the process after a failed write: the state of the disk is unknown, so any further answer could be
/// wrong. A failed sync is never retried, since a second sync reports success for pages that the kernel has
/// dropped (P10).
pub(crate) fn fail_stop(directory: &str, what: &str, error: &io::Error) -> ! {
    tracing::error!(
        directory,
        %error,
        "writing {what} in `{directory}` failed ({error}); this process ends at once, nothing that was acknowledged is \
         lost; check the disk (`dmesg`), then start again"
    );
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_ancestor_is_synced_in_its_parent_before_the_next_is_created() {
        let place = tempfile::tempdir().expect("a directory");
        let at = |name: &str| place.path().join(name);
        let mut synced = Vec::new();
        let made = make(&at("a/b/c"), |directory| {
            let below = fs::read_dir(directory)?.count();
            synced.push((directory.to_owned(), below));
            Ok(())
        });
        made.expect("it can be made");
        assert_eq!(synced, [(place.path().to_owned(), 1), (at("a"), 1), (at("a/b"), 1)]);
        assert!(at("a/b/c").is_dir());
        assert_eq!(fs::metadata(at("a")).expect("it is there").mode() & 0o777, DIRECTORY_MODE);

        let mut again = Vec::new();
        make(&at("a/b/d"), |directory| {
            again.push(directory.to_owned());
            Ok(())
        })
        .expect("it can be made");
        assert_eq!(again, [at("a/b")]);
    }

    #[test]
    fn no_directory_is_created_below_an_unsynced_one() {
        let place = tempfile::tempdir().expect("a directory");
        let failed = make(&place.path().join("a/b"), |_| Err(io::Error::other("no disk")));
        assert!(failed.is_err());
        assert!(place.path().join("a").is_dir() && !place.path().join("a/b").exists());
    }
}
