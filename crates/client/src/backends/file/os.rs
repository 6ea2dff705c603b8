//! The system calls of a lock directory, and what their failures mean to a user.
//!
//! Knows files and error numbers; knows nothing of locks, records or sessions.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FlockArg, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::UnlinkatFlags;

use crate::error::{BackendError, BackendErrorKind};

/// Why a step in the directory failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The directory was deleted or replaced under us.
    Gone,
    /// Another process sits on a short lock for longer than [`SHORT_LOCK_PATIENCE`]: it was stopped in the middle.
    Stuck(BackendError),
    /// Anything else.
    Error(BackendError),
}

impl Fault {
    pub(super) fn operator(message: impl Into<String>) -> Self {
        Self::Error(BackendError::new(BackendErrorKind::Operator, message))
    }
}

impl From<Fault> for BackendError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Gone => Self::new(
                BackendErrorKind::Operator,
                "the lock directory was deleted while it was in use; connect again to make a new one",
            ),
            Fault::Stuck(error) | Fault::Error(error) => error,
        }
    }
}

/// For how long a record or the counter may be locked by someone else before that is an error: its critical section
/// takes well under a millisecond, so whoever has it was stopped in the middle.
pub(super) const SHORT_LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// What a failed call on `path` means, in one line.
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
        _ => format!("can't {doing} `{path}`: {error}"),
    };
    BackendError::caused(BackendErrorKind::Operator, message, error)
}

/// Tries to flock a file without waiting; `false` if someone else is in the way.
pub(super) fn try_flock(file: &File, exclusive: bool) -> io::Result<bool> {
    let how = if exclusive { FlockArg::LockExclusiveNonblock } else { FlockArg::LockSharedNonblock };
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::EWOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Ends a flock for good, also where a child has the same descriptor.
pub(super) fn unflock(file: &File) -> io::Result<()> {
    flock(file, FlockArg::Unlock).map_err(io::Error::from)
}

// nix's `Flock` unlocks when it is dropped. A hold that a child inherited must outlive our exit, so only the kernel
// may end it, at the last close.
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

/// Pauses between tries for a short lock: first so short that the thread may as well sleep, then on the timer.
pub(super) struct Backoff {
    tries: u32,
    waited: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { tries: 0, waited: Duration::ZERO }
    }

    /// How long to pause now; `None` once [`SHORT_LOCK_PATIENCE`] is used up. Random, so that nobody is always late.
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

/// Something between a half and the whole of `most`.
pub(super) fn jitter(most: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    most / 2 + (most / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// Opens what is there.
pub(super) fn open_at(dir: &File, name: &str, flags: OFlag) -> io::Result<File> {
    let fd = nix::fcntl::openat(dir, name, flags | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(File::from(fd))
}

/// Opens a file for reading and writing, or makes it with exactly these permission bits, whatever the umask.
pub(super) fn open_or_create_at(dir: &File, name: &str, mode: u32) -> io::Result<File> {
    if mode & 0o077 == 0 {
        // For its owner alone: no umask takes anything from that, and one call does both.
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_CLOEXEC;
        return Ok(File::from(nix::fcntl::openat(dir, name, flags, mode_bits(mode))?));
    }
    let mut denied = 0;
    loop {
        match open_at(dir, name, OFlag::O_RDWR) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // Another user's file that is just being made has its permission bits a moment later.
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

/// Makes a new file with exactly these permission bits.
pub(super) fn create_at(dir: &File, name: &str, mode: u32) -> io::Result<File> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let file = File::from(nix::fcntl::openat(dir, name, flags, mode_bits(mode))?);
    if mode & 0o077 != 0 {
        nix::sys::stat::fchmod(&file, mode_bits(mode))?;
    }
    Ok(file)
}

/// Removes a name; no error if it is not there.
pub(super) fn remove_at(dir: &File, name: &str) -> io::Result<()> {
    match nix::unistd::unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

pub(super) fn mode_bits(mode: u32) -> Mode {
    Mode::from_bits_truncate(mode as nix::libc::mode_t)
}

/// The kernel's random id of this boot, the same for every process of the host.
pub(super) fn boot_id() -> [u8; 16] {
    static ID: std::sync::OnceLock<[u8; 16]> = std::sync::OnceLock::new();
    *ID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        // Where there is no such file, every process is a boot of its own: closed holds then last longer, never less.
        u128::from_str_radix(&digits, 16).map_or_else(|_| random_id(), u128::to_be_bytes)
    })
}

/// 128 random bits.
pub(super) fn random_id() -> [u8; 16] {
    let mut id = [0; 16];
    if getrandom::fill(&mut id).is_err() {
        // A kernel without randomness; ids must still differ between processes of a host.
        let now = crate::time::BootInstant::now().as_nanos();
        id[..8].copy_from_slice(&now.to_be_bytes());
        id[8..12].copy_from_slice(&std::process::id().to_be_bytes());
    }
    id
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A test may ask a process to die exactly here, as kill -9 would do it.
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
    fn a_failed_call_says_in_one_line_what_to_do() {
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
