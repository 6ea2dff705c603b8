//! System calls on a lock directory, and explanations of their failures for users.
//!
//! Handles files, flocks and error numbers; knows nothing of lock names, records and sessions.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use lockkeeper_backend::{BackendError, BackendErrorKind};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, FlockArg, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::UnlinkatFlags;

/// Why an operation in the directory failed.
#[derive(Debug)]
pub(super) enum OsError {
    /// The directory was deleted or replaced while in use.
    Gone,
    /// Another process has held a short lock for longer than [`SHORT_LOCK_PATIENCE`]: it was stopped in its
    /// critical section.
    Stuck(BackendError),
    /// Any other error.
    Error(BackendError),
}

impl OsError {
    pub(super) fn operator(message: impl Into<String>) -> Self {
        Self::Error(BackendError::new(BackendErrorKind::Operator, message))
    }
}

impl From<OsError> for BackendError {
    fn from(fault: OsError) -> Self {
        match fault {
            OsError::Gone => Self::new(
                BackendErrorKind::Operator,
                "the lock directory was deleted while it was in use; connect again to make a new one",
            ),
            OsError::Stuck(error) | OsError::Error(error) => error,
        }
    }
}

/// Limit for waiting until another process unlocks a record or the counter: the critical section takes well
/// under a millisecond, so the process must have been stopped inside it.
pub(super) const SHORT_LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Explains a failed call on `path` in one line.
pub(super) fn explain(doing: &str, path: &Path, error: io::Error) -> BackendError {
    let path = path.display();
    let message = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => {
            format!("can't {doing} `{path}`: the disk is full or the quota used up; free some space")
        }
        Some(Errno::EACCES | Errno::EPERM) => format!(
            "can't {doing} `{path}`: user {} may not; give that user write permission, or use another directory",
            nix::unistd::geteuid()
        ),
        Some(Errno::EROFS) => {
            format!("can't {doing} `{path}`: the filesystem is read-only; use another directory")
        }
        Some(Errno::ENOTDIR) => {
            format!("can't {doing} `{path}`: a part of it is not a directory; use another path")
        }
        Some(Errno::EMFILE | Errno::ENFILE) => {
            format!("can't {doing} `{path}`: out of file descriptors; each hold takes one: raise `ulimit -n`")
        }
        _ => format!("can't {doing} `{path}`"),
    };
    BackendError::caused(BackendErrorKind::Operator, message, error)
}

/// Tries to flock a file without waiting; `false` if another process has a conflicting flock.
pub(super) fn try_flock(file: &File, exclusive: bool) -> io::Result<bool> {
    let how = if exclusive { FlockArg::LockExclusiveNonblock } else { FlockArg::LockSharedNonblock };
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::EWOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Releases a flock for all copies of the descriptor, including those in child processes.
pub(super) fn unflock(file: &File) -> io::Result<()> {
    flock(file, FlockArg::Unlock).map_err(io::Error::from)
}

// Not nix's `Flock`, which unlocks when it is dropped: a hold inherited by a child must outlive this process,
// so only the kernel may end it, at the last close.
#[allow(deprecated)]
fn flock(file: &File, how: FlockArg) -> nix::Result<()> {
    use std::os::fd::AsRawFd;
    loop {
        match nix::fcntl::flock(file.as_raw_fd(), how) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// Pauses between attempts at a short flock: the first ones are short, later ones up to 5 ms.
pub(super) struct Backoff {
    tries: u32,
    waited: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { tries: 0, waited: Duration::ZERO }
    }

    /// The next pause; `None` once [`SHORT_LOCK_PATIENCE`] is used up. Pauses are random, so that no process
    /// misses each of the moments at which the flock is free.
    pub(super) fn next(&mut self) -> Option<Duration> {
        if self.waited >= SHORT_LOCK_PATIENCE {
            return None;
        }
        let most = Duration::from_micros(40 << self.tries.min(7));
        self.tries += 1;
        let pause = jitter(most);
        self.waited += pause;
        Some(pause)
    }
}

/// A random duration between half of `most` and `most`.
pub(super) fn jitter(most: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    most / 2 + (most / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// Opens an existing file.
pub(super) fn open_at(dir: &File, name: &str, flags: OFlag) -> io::Result<File> {
    let fd = nix::fcntl::openat(dir, name, flags | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(File::from(fd))
}

/// Opens a file for reading and writing, or creates it with exactly these permission bits, regardless of the
/// umask.
pub(super) fn open_or_create_at(dir: &File, name: &str, mode: u32) -> io::Result<File> {
    if mode & 0o077 == 0 {
        // Permissions for the owner only: no usual umask affects them, and one call opens or creates.
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_CLOEXEC;
        let file = File::from(nix::fcntl::openat(dir, name, flags, mode_bits(mode))?);
        if file.metadata()?.mode() & mode != mode {
            nix::sys::stat::fchmod(&file, mode_bits(mode))?;
        }
        return Ok(file);
    }
    let mut denied = 0;
    loop {
        match open_at(dir, name, OFlag::O_RDWR) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // A file that another user is just creating gets its permission bits a moment later.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && denied < 3 => {
                denied += 1;
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            other => return other,
        }
        match create_at(dir, name, mode) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
    }
}

/// Creates a new file with exactly these permission bits.
pub(super) fn create_at(dir: &File, name: &str, mode: u32) -> io::Result<File> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let file = File::from(nix::fcntl::openat(dir, name, flags, mode_bits(mode))?);
    nix::sys::stat::fchmod(&file, mode_bits(mode))?;
    Ok(file)
}

/// Whether a name in a directory is still that of an open file: false once it was deleted, moved or replaced.
pub(super) fn is_at(dir: &File, name: &str, file: &File) -> bool {
    let Ok(there) = nix::sys::stat::fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return false };
    file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (there.st_dev, there.st_ino))
}

/// Removes a name; no error if it does not exist.
pub(super) fn remove_at(dir: &File, name: &str) -> io::Result<()> {
    match nix::unistd::unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

pub(super) fn mode_bits(mode: u32) -> Mode {
    Mode::from_bits_truncate(mode as nix::libc::mode_t)
}

/// The kernel's random id of this boot, the same for all processes of the host.
pub(super) fn boot_id() -> [u8; 16] {
    static ID: std::sync::OnceLock<[u8; 16]> = std::sync::OnceLock::new();
    *ID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        // Without that file, each process counts as a boot of its own: closed holds then last longer, never
        // shorter.
        u128::from_str_radix(&digits, 16).map_or_else(|_| random_id(), u128::to_be_bytes)
    })
}

/// 128 random bits.
pub(super) fn random_id() -> [u8; 16] {
    let mut id = [0; 16];
    if getrandom::fill(&mut id).is_err() {
        // A kernel without randomness; the ids must still be unique among the processes of a host.
        let now = lockkeeper_backend::BootInstant::now().as_nanos();
        id[..8].copy_from_slice(&now.to_be_bytes());
        id[8..12].copy_from_slice(&std::process::id().to_be_bytes());
    }
    id
}

/// Lets a test kill the process exactly here, as kill -9 does.
#[cfg(test)]
pub(super) fn die_at(point: &str) {
    super::tests::die_if_asked(point);
}

#[cfg(not(test))]
pub(super) fn die_at(_point: &str) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_is_explained_in_one_line_with_the_remedy() {
        for (errno, words) in [
            (Errno::ENOSPC, "the disk is full"),
            (Errno::EDQUOT, "quota"),
            (Errno::EACCES, "may not"),
            (Errno::EROFS, "read-only"),
            (Errno::EMFILE, "ulimit -n"),
            (Errno::ENOTDIR, "not a directory"),
            (Errno::EIO, "can't write `/locks/counter`"),
        ] {
            let error = explain("write", Path::new("/locks/counter"), errno.into());
            assert!(error.message.contains(words) && error.message.contains("/locks/counter"), "{error}");
            assert!(!error.message.contains('\n'), "{error}");
        }
    }
}
