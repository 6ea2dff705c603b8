//! The system calls of the file fence.
//!
//! Takes the flock, follows no symlink, and replaces files. The order of the steps, on which durability
//! depends, is in `steps`.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::Paths;
use super::error::{FileError, Unguardable};
use super::steps::{self, FenceFiles, Target};
use crate::format::{self, Unreadable};
use crate::rule::Marks;

/// The content of a lock file once marks exist. The code only checks that the file is not empty; the text is
/// for people who find it.
const FOUNDED: &[u8] = b"Marks of a Lockkeeper fence are kept beside this file. Remove neither.\n";

/// The filesystems shared between hosts that are recognized, by magic number (statfs(2)).
const NETWORK: [(u64, &str); 10] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x0102_1997, "9P"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0BD0_0BD0, "Lustre"),
];

/// Refuses a directory on a filesystem of `NETWORK`.
pub(super) fn refuse_network(dir: &Path) -> Result<(), FileError> {
    let found = nix::sys::statfs::statfs(dir)
        .map_err(|errno| FileError::io("ask the filesystem's type of", dir)(errno.into()))?;
    #[expect(
        clippy::cast_sign_loss,
        reason = "the type differs by platform; magic numbers are 32 bits in all"
    )]
    let magic = found.filesystem_type().0 as u64 & 0xFFFF_FFFF;
    match network(magic) {
        Some(kind) => {
            Err(FileError::Unguardable { path: dir.to_owned(), why: Unguardable::Network { kind } })
        }
        None => Ok(()),
    }
}

fn network(magic: u64) -> Option<&'static str> {
    NETWORK.iter().find(|(known, _)| *known == magic).map(|(_, kind)| *kind)
}

/// The metadata of the guarded path, if it exists. Refuses a symlink, and a file with several hard links:
/// through another name it could be changed without this fence.
pub(super) fn inspect(data: &Path) -> Result<Option<Metadata>, FileError> {
    let Some(found) = absent_ok(fs::symlink_metadata(data)).map_err(FileError::io("look at", data))? else {
        return Ok(None);
    };
    let unguardable = |why| Err(FileError::Unguardable { path: data.to_owned(), why });
    if found.is_symlink() {
        let target = fs::canonicalize(data).or_else(|_| fs::read_link(data));
        return unguardable(Unguardable::Symlink { target: target.map_err(FileError::io("follow", data))? });
    }
    if found.is_file() && found.nlink() > 1 {
        return unguardable(Unguardable::HardLinks { names: found.nlink() });
    }
    Ok(Some(found))
}

/// The content of the guarded file; `None` if it does not exist.
pub(super) fn read(data: &Path) -> Result<Option<Vec<u8>>, FileError> {
    if inspect(data)?.is_some_and(|found| !found.is_file()) {
        return Err(FileError::Unguardable { path: data.to_owned(), why: Unguardable::NotAFile });
    }
    read_up_to(data, u64::MAX)
}

/// Reads the marks without the flock. Since the mark file is replaced atomically, this returns one complete
/// state.
pub(super) fn peek(paths: &Paths) -> Result<Marks, FileError> {
    let lock =
        absent_ok(open_options().read(true).open(&paths.lock)).map_err(FileError::io("open", &paths.lock))?;
    steps::load(&mut LockedFiles { paths, lock: lock.map_or(LockFile::Absent, LockFile::Seen), data: None })
}

/// The lock file, as this process has it open.
#[derive(Debug)]
enum LockFile {
    /// There is no lock file, because the file was never fenced. Only when marks are read without the flock.
    Absent,
    /// The lock file is open, but not locked. Only when marks are read without the flock.
    Seen(File),
    /// The lock file is locked until this value is dropped, or until the process ends.
    Held(Flock<File>),
}

impl LockFile {
    fn file(&self) -> Option<&File> {
        match self {
            Self::Absent => None,
            Self::Seen(file) => Some(file),
            Self::Held(flock) => Some(flock),
        }
    }
}

/// The files of a fence: with the flock if created by [`LockedFiles::open`], without it in [`peek`].
#[derive(Debug)]
pub(super) struct LockedFiles<'a> {
    paths: &'a Paths,
    lock: LockFile,
    /// Metadata of the guarded file when the flock was taken; replacements keep its mode and owner.
    data: Option<Metadata>,
}

impl<'a> LockedFiles<'a> {
    /// Takes the flock, waiting at most `limit`.
    pub(super) fn open(paths: &'a Paths, limit: Duration) -> Result<Self, FileError> {
        let started = Instant::now();
        loop {
            let data = inspect(&paths.data)?;
            let file = open_lock(&paths.lock, data.as_ref())?;
            let file = flock(file, &paths.lock, started, limit)?;
            // If the lock file was removed and recreated during the wait, this flock is on the removed inode
            // and excludes no process that opens the new file. Then the loop starts again.
            let ours = file.metadata().map_err(FileError::io("look at", &paths.lock))?;
            let named = absent_ok(fs::symlink_metadata(&paths.lock))
                .map_err(FileError::io("look at", &paths.lock))?;
            if named.is_some_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())) {
                let data = inspect(&paths.data)?;
                return Ok(Self { paths, lock: LockFile::Held(file), data });
            }
        }
    }

    fn path(&self, target: Target) -> &Path {
        match target {
            Target::Marks => &self.paths.marks,
            Target::Data => &self.paths.data,
        }
    }

    /// Writes the replacement under its temporary name; on failure the caller removes it, if it exists.
    fn fill_temp(&self, like: Option<&Metadata>, bytes: &[u8]) -> io::Result<()> {
        // If a file of this name exists, a killed process left it: no other process uses it, since this one
        // holds the flock.
        absent_ok(fs::remove_file(&self.paths.temp))?;
        // The file must not be readable by others before it has the mode of the file that it replaces.
        let mode = if like.is_some() { 0o600 } else { 0o666 };
        let mut file = open_options().write(true).create_new(true).mode(mode).open(&self.paths.temp)?;
        if let Some(like) = like {
            take_mode_of(&file, like)?;
        }
        file.write_all(bytes)?;
        file.sync_all()
    }
}

impl FenceFiles for LockedFiles<'_> {
    fn marks(&mut self) -> Result<Option<Vec<u8>>, FileError> {
        let path = &self.paths.marks;
        let Some(bytes) = read_up_to(path, format::BYTES_MAX + 1)? else {
            return Ok(None);
        };
        if bytes.len() as u64 > format::BYTES_MAX {
            return Err(self.unreadable(Unreadable::Corrupt { why: "it is longer than any mark file" }));
        }
        Ok(Some(bytes))
    }

    fn founded(&mut self) -> Result<bool, FileError> {
        let Some(lock) = self.lock.file() else { return Ok(false) };
        Ok(lock.metadata().map_err(FileError::io("look at", &self.paths.lock))?.len() > 0)
    }

    fn found(&mut self) -> Result<(), FileError> {
        let Some(mut lock) = self.lock.file() else { return Ok(()) };
        let note = lock.write_all(FOUNDED).and_then(|()| lock.sync_all());
        note.map_err(FileError::io("write", &self.paths.lock))
    }

    fn prepare(&mut self, target: Target, bytes: &[u8]) -> Result<(), FileError> {
        let like = match target {
            Target::Data if self.data.as_ref().is_some_and(|data| !data.is_file()) => {
                return Err(FileError::Unguardable {
                    path: self.paths.data.clone(),
                    why: Unguardable::NotAFile,
                });
            }
            Target::Data => self.data.clone(),
            Target::Marks => absent_ok(fs::symlink_metadata(&self.paths.marks))
                .map_err(FileError::io("look at", &self.paths.marks))?
                .or_else(|| self.data.clone().filter(Metadata::is_file)),
        };
        self.fill_temp(like.as_ref(), bytes).map_err(|source| {
            // If this fails too, the next replacement removes the file; the first error is returned.
            let _ = fs::remove_file(&self.paths.temp);
            FileError::io("write a replacement for", self.path(target))(source)
        })
    }

    fn rename(&mut self, target: Target) -> Result<(), FileError> {
        let to = self.path(target);
        fs::rename(&self.paths.temp, to).map_err(FileError::io("put the replacement in the place of", to))
    }

    fn sync_names(&mut self) -> Result<(), FileError> {
        let dir = &self.paths.dir;
        File::open(dir)
            .and_then(|open| open.sync_all())
            .map_err(FileError::io("make durable the directory", dir))
    }

    fn missing(&self) -> FileError {
        FileError::MarksMissing { path: self.paths.marks.clone() }
    }

    fn unreadable(&self, why: Unreadable) -> FileError {
        let path = self.paths.marks.clone();
        match why {
            Unreadable::Corrupt { why } => FileError::MarksCorrupt { path, why },
            Unreadable::Newer { version } => FileError::MarksNewer { path, version },
        }
    }

    fn unsure(&self, source: FileError) -> FileError {
        FileError::Unsure { path: self.paths.data.clone(), source: Box::new(source) }
    }
}

/// Opens without following a symlink and without blocking on a FIFO.
fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
    options
}

/// Opens the lock file, or creates it, with the mode and owner of the guarded file if that exists: users who
/// may write the guarded file may use its fence.
fn open_lock(path: &Path, data: Option<&Metadata>) -> Result<File, FileError> {
    loop {
        let opened = open_options().read(true).write(true).open(path);
        let error = match opened {
            Ok(file) => return Ok(file),
            // Taking a flock needs no write permission; only the first write of `FOUNDED` does.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return open_options().read(true).open(path).map_err(FileError::io("open", path));
            }
            Err(error) => error,
        };
        if error.kind() != ErrorKind::NotFound {
            return Err(FileError::io("open", path)(error));
        }
        match open_options().read(true).write(true).create_new(true).open(path) {
            Ok(file) => {
                if let Some(like) = data.filter(|data| data.is_file()) {
                    take_mode_of(&file, like).map_err(FileError::io("set the mode of", path))?;
                }
                return Ok(file);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let dir = path.parent().unwrap_or(path);
                return Err(FileError::io("find the directory", dir)(error));
            }
            Err(error) => return Err(FileError::io("create", path)(error)),
        }
    }
}

/// Takes the flock, waiting until `limit` after `started`.
///
/// flock(2) has no time limit, so a helper thread blocks in it. The kernel wakes blocked callers when the
/// flock is released, whereas polling could starve under contention. After the limit the helper thread stays
/// blocked until it gets the flock, and then releases it at once.
fn flock(file: File, path: &Path, started: Instant, limit: Duration) -> Result<Flock<File>, FileError> {
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(held) => return Ok(held),
        Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => file,
        Err((_, errno)) => return Err(FileError::io("lock", path)(errno.into())),
    };
    let (answer, wait) = mpsc::channel();
    let waiter = thread::Builder::new().name("fence-flock".to_owned()).spawn(move || {
        let mut file = file;
        let taken = loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(held) => break Ok(held),
                Err((back, Errno::EINTR)) => file = back,
                Err((_, errno)) => break Err(errno),
            }
        };
        // If the receiver is gone, the sent flock is dropped, and so released.
        let _ = answer.send(taken);
    });
    waiter.map_err(FileError::io("start a thread to wait for", path))?;
    match wait.recv_timeout(limit.saturating_sub(started.elapsed())) {
        Ok(taken) => taken.map_err(|errno| FileError::io("lock", path)(errno.into())),
        Err(_) => Err(FileError::Busy { lock: path.to_owned(), waited: limit }),
    }
}

/// Gives `file` the owner, group and mode of `like`, as permitted for this process.
fn take_mode_of(file: &File, like: &Metadata) -> io::Result<()> {
    let ours = file.metadata()?;
    let mut mode = like.mode() & 0o7777;
    if (ours.uid(), ours.gid()) != (like.uid(), like.gid())
        && fchown(file, Some(like.uid()), Some(like.gid())).is_err()
    {
        // Only root may change the owner, so the group is tried alone. The setuid, setgid and sticky bits are
        // dropped then: the new file has another owner, and setuid would grant this owner's identity.
        let _ = fchown(file, None, Some(like.gid()));
        mode &= 0o777;
    }
    // Filesystems without modes report the same mode for all files. Setting it could fail there, and is
    // skipped.
    if file.metadata()?.mode() & 0o7777 == mode {
        return Ok(());
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// The first `limit` bytes of a file; `None` if it does not exist.
fn read_up_to(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
    let mut bytes = Vec::new();
    let read = open_options().read(true).open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    Ok(absent_ok(read).map_err(FileError::io("read", path))?.map(|_| bytes))
}

fn absent_ok<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::network;

    #[test]
    fn network_filesystems_are_recognized_by_magic_number() {
        assert_eq!(network(0x6969), Some("NFS"));
        assert_eq!(network(0xFF53_4D42), Some("CIFS"));
        for (local, magic) in
            [("ext4", 0xEF53), ("xfs", 0x5846_5342), ("btrfs", 0x9123_683E), ("tmpfs", 0x0102_1994)]
        {
            assert_eq!(network(magic), None, "{local}");
        }
    }
}
