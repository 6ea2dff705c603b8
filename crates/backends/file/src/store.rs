//! An open lock directory: created, checked and opened once; afterwards used through descriptors.
//!
//! Files are opened, created and removed through descriptors of the directory, not by path, so that a deleted
//! directory and its replacement are never mixed up.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_backend::{BackendError, BackendErrorKind, hex};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::FchmodatFlags;
use nix::unistd::AccessFlags;

use super::counter::{self, Counter};
use super::fs_type;
use super::names::is_record;
use super::os::{Backoff, OsError, create_at, explain, mode_bits, open_at, random_id, try_flock};
use super::slots::{self, Content};
use super::state::RecordState;

/// The layout that this code reads and writes.
const FORMAT: u64 = 1;
const FORMAT_WORD: &str = "lockkeeper-file";
/// 2026-01-01T00:00:00Z in seconds since 1970: the origin of the counters' microseconds (T1).
const EPOCH_2026: Duration = Duration::from_secs(1_767_225_600);

/// The settings from a URL.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) path: PathBuf,
    /// `?tokens_above=N`.
    pub(super) tokens_above: Option<u64>,
    /// `?fuse=allow`.
    pub(super) fuse_allowed: bool,
    /// The wall clock since 1970, read only when a counter is created or rebuilt.
    pub(super) wall_clock: fn() -> Duration,
}

/// The system's wall clock; times before 1970 become 1970.
pub(super) fn wall_clock() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

pub(super) struct FileStore {
    pub(super) path: PathBuf,
    /// Kept open so that the inode number, which identifies the directory, is not reused.
    _dir: File,
    pub(super) locks: File,
    pub(super) sessions: File,
    pub(super) counter: Counter,
    /// Permission bits of every file created here.
    pub(super) file_mode: u32,
    identity: (u64, u64),
}

impl FileStore {
    /// Opens a directory, and creates missing files. `known` is the highest token that this process has seen
    /// at this path.
    pub(super) fn open(config: &Config, known: u64) -> Result<Self, OsError> {
        let path = config.path.clone();
        let failed = |doing: &'static str, path: &Path| {
            let path = path.to_owned();
            move |e: io::Error| OsError::Error(explain(doing, &path, e))
        };
        check_filesystem(config)?;
        make_directory(&path).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => OsError::operator(format!(
                "`{}` is not a directory; a lock directory is needed: give another path",
                path.display()
            )),
            _ => OsError::Error(explain("make the lock directory", &path, e)),
        })?;
        let dir = File::open(&path).map_err(failed("open the lock directory", &path))?;
        let metadata = dir.metadata().map_err(failed("look at", &path))?;
        let mode = metadata.mode();
        let layout = Layout { path: &path, dir: &dir, config, known, mode };
        layout.complete()?;
        let folder = |name: &str| {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
            let folder = open_at(&dir, name, flags).map_err(failed("open", &path.join(name)))?;
            let may = AccessFlags::W_OK | AccessFlags::X_OK;
            nix::unistd::faccessat(&dir, name, may, AtFlags::AT_EACCESS)
                .map_err(|errno| failed("write in", &path.join(name))(errno.into()))?;
            Ok::<_, OsError>(folder)
        };
        let (locks, sessions) = (folder("locks")?, folder("sessions")?);
        let file =
            open_at(&dir, counter::NAME, OFlag::O_RDWR).map_err(failed("open", &path.join(counter::NAME)))?;
        let folder = dir.try_clone().map_err(failed("open the lock directory", &path))?;
        let counter = Counter::new(file, folder, path.join(counter::NAME));
        let store = Self {
            locks,
            sessions,
            counter,
            file_mode: file_mode(mode),
            identity: (metadata.dev(), metadata.ino()),
            _dir: dir,
            path,
        };
        store.check_counter(config, known)?;
        Ok(store)
    }

    /// Checks the counter, and raises it to `known` and to the URL's `tokens_above`. A damaged counter is
    /// rebuilt if the URL has `tokens_above`, and an error otherwise.
    fn check_counter(&self, config: &Config, known: u64) -> Result<(), OsError> {
        let floor = config.tokens_above.unwrap_or(0).max(known);
        match (self.counter.lock(), config.tokens_above) {
            (Ok(mut counter), _) => counter.raise_to(floor),
            (Err(OsError::Error(_)), Some(_)) => self.counter.rebuild(first_value(config, known)?),
            (Err(fault), _) => Err(fault),
        }
    }

    /// Whether the path still refers to this directory, and the counter is still its file.
    pub(super) fn is_current(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.identity)
            && self.locks.metadata().is_ok_and(|now| now.nlink() > 0)
            && self.sessions.metadata().is_ok_and(|now| now.nlink() > 0)
            && self.counter.is_there()
    }

    /// Converts an error: to [`OsError::Gone`] if the directory is gone, which then is the reason for the
    /// error.
    pub(super) fn fault(&self, error: BackendError) -> OsError {
        if self.is_current() { OsError::Error(error) } else { OsError::Gone }
    }
}

/// Makes a directory and those above it, for this user alone, whatever the umask is. A path that exists must
/// be a directory.
fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(0o700)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => match path.parent() {
            // Filesystems such as `/proc` have no directory either, but refuse one in a directory that is
            // there.
            Some(above) if e.kind() == io::ErrorKind::NotFound && !above.exists() => {
                make_directory(above)?;
                make_directory(path)
            }
            _ => Err(e),
        },
    }
}

/// A directory that is being created or checked.
struct Layout<'a> {
    path: &'a Path,
    dir: &'a File,
    config: &'a Config,
    known: u64,
    mode: u32,
}

impl Layout<'_> {
    /// Checks the format, and creates missing files under a flock: only one process at a time does so.
    fn complete(&self) -> Result<(), OsError> {
        let is_there = |name: &str| nix::sys::stat::fstatat(self.dir, name, AtFlags::empty()).is_ok();
        if self.check_format()? && ["locks", "sessions", counter::NAME].into_iter().all(is_there) {
            return Ok(());
        }
        let mut backoff = Backoff::new();
        while !try_flock(self.dir, true).map_err(|e| self.fault("flock", ".", e))? {
            let Some(pause) = backoff.next() else {
                return Err(OsError::Stuck(BackendError::new(
                    BackendErrorKind::Unreachable,
                    format!(
                        "another process has been making `{}` for seconds; try again",
                        self.path.display()
                    ),
                )));
            };
            std::thread::sleep(pause);
        }
        let had_format = self.check_format()?;
        for folder in ["locks", "sessions"] {
            self.make_folder(folder)?;
        }
        if !is_there(counter::NAME) {
            self.check_clock(had_format)?;
            self.wait_for_sessions()?;
            let known = self.known.max(self.highest_mark()?);
            self.put(counter::NAME, &counter::fresh(first_value(self.config, known)?))?;
        }
        if !had_format {
            self.put("FORMAT", format!("{FORMAT_WORD} {FORMAT}\n").as_bytes())?;
        }
        super::os::unflock(self.dir).map_err(|e| self.fault("unlock", ".", e))
    }

    /// Waits until no session lives in a directory whose counter is missing: its files were deleted under
    /// them, so their locks are lost, and those of a new counter would be granted beside them. They notice
    /// within a second; a guardian keeps its session until it has ended its command.
    fn wait_for_sessions(&self) -> Result<(), OsError> {
        let (folder, path) = (self.folder("sessions")?, self.path.join("sessions"));
        let mut backoff = Backoff::new();
        while any_lives(&folder, &path) {
            let Some(pause) = backoff.next() else {
                return Err(OsError::Stuck(BackendError::new(
                    BackendErrorKind::Unreachable,
                    format!(
                        "the counter of `{}` was deleted while locks were held there, and those processes still run: end \
                         them (`fuser` names those that use `{}/*`), or wait until they have ended",
                        self.path.display(),
                        path.display()
                    ),
                )));
            };
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// The highest token in the records of a directory without a counter; 0 if there are none.
    fn highest_mark(&self) -> Result<u64, OsError> {
        let (folder, path) = (self.folder("locks")?, self.path.join("locks"));
        let entries = std::fs::read_dir(path).map_err(|e| self.fault("read", "locks", e))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let tokens = names.filter(|name| is_record(name)).filter_map(|name| {
            let file = open_at(&folder, &name, OFlag::O_RDONLY).ok()?;
            let Content::Body(_, body) = slots::read(&file).ok()? else { return None };
            Some(RecordState::decode(&body).ok()?.1.table.last_token)
        });
        Ok(tokens.max().unwrap_or(0))
    }

    fn folder(&self, name: &str) -> Result<File, OsError> {
        open_at(self.dir, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(|e| self.fault("open", name, e))
    }

    /// Whether the format file exists; an error if this program cannot read the format.
    fn check_format(&self) -> Result<bool, OsError> {
        let mut text = String::new();
        match open_at(self.dir, "FORMAT", OFlag::O_RDONLY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(self.fault("open", "FORMAT", e)),
            Ok(file) => {
                file.take(100).read_to_string(&mut text).map_err(|e| self.fault("read", "FORMAT", e))?;
            }
        }
        let path = self.path.join("FORMAT");
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            [FORMAT_WORD, number] => match number.parse::<u64>() {
                Ok(FORMAT) => Ok(true),
                Ok(other) => Err(OsError::operator(format!(
                    "the lock directory `{}` has format {other}, this program knows {FORMAT}: it was made by a newer \
                     Lockkeeper; upgrade this one, or use another directory",
                    self.path.display()
                ))),
                Err(_) => Err(not_a_format(&path, &text)),
            },
            _ => Err(not_a_format(&path, &text)),
        }
    }

    fn make_folder(&self, name: &str) -> Result<(), OsError> {
        // All users of the directory must be able to remove the files of dead processes: never sticky.
        let mode = (self.mode & 0o2777) | 0o700;
        let folder_mode = if file_mode(self.mode) & 0o006 != 0 {
            mode
        } else if file_mode(self.mode) & 0o060 != 0 {
            mode & 0o2770
        } else {
            mode & 0o2700
        };
        match nix::sys::stat::mkdirat(self.dir, name, mode_bits(folder_mode)) {
            Ok(()) => {}
            Err(Errno::EEXIST) => return Ok(()),
            Err(errno) => return Err(self.fault("make", name, errno.into())),
        }
        let flags = FchmodatFlags::FollowSymlink;
        nix::sys::stat::fchmodat(self.dir, name, mode_bits(folder_mode), flags)
            .map_err(|e| self.fault("set the mode of", name, e.into()))
    }

    /// Creates a file whose content is on disk before the file gets its name.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), OsError> {
        let temporary = format!("{name}.new-{}", hex(&random_id()[..4]));
        let made = create_at(self.dir, &temporary, file_mode(self.mode))
            .and_then(|file| file.write_all_at(bytes, 0).and_then(|()| file.sync_all()))
            .and_then(|()| Ok(nix::fcntl::renameat(self.dir, temporary.as_str(), self.dir, name)?))
            .and_then(|()| self.dir.sync_all());
        made.map_err(|e| {
            let _ = super::os::remove_at(self.dir, &temporary);
            self.fault("write", name, e)
        })
    }

    /// An error if the counter of an existing directory is missing and the wall clock is behind the
    /// directory's creation time: a counter made from this clock could issue tokens a second time (T1).
    /// `tokens_above` replaces the clock.
    fn check_clock(&self, had_format: bool) -> Result<(), OsError> {
        if !had_format || self.config.tokens_above.is_some() {
            return Ok(());
        }
        let made = nix::sys::stat::fstatat(self.dir, "FORMAT", AtFlags::empty())
            .map_err(|errno| self.fault("look at", "FORMAT", errno.into()))?;
        let made = Duration::from_secs(u64::try_from(made.st_mtime).unwrap_or(0));
        if made <= (self.config.wall_clock)() {
            return Ok(());
        }
        Err(OsError::operator(format!(
            "the counter of `{}` is missing, and the wall clock is behind the time at which the directory was made: \
             set the clock, or say above which token N to go on with `?tokens_above=N`",
            self.path.display()
        )))
    }

    fn fault(&self, doing: &str, name: &str, error: io::Error) -> OsError {
        OsError::Error(explain(doing, &self.path.join(name), error))
    }
}

fn not_a_format(path: &Path, text: &str) -> OsError {
    OsError::operator(format!(
        "`{}` says {:?}, not `{FORMAT_WORD} {FORMAT}`: this is not a lock directory, or a damaged one; use another",
        path.display(),
        text.chars().take(40).collect::<String>()
    ))
}

/// Whether any session lives; `folder` is the directory of their files, at `path`.
fn any_lives(folder: &File, path: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(path) else { return false };
    let mut names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.any(|name| {
        let pipe = open_at(folder, &name, OFlag::O_RDONLY | OFlag::O_NONBLOCK);
        pipe.is_ok_and(|pipe| matches!(try_flock(&pipe, false), Ok(false)))
    })
}

/// The initial value of a new counter (T1).
fn first_value(config: &Config, known: u64) -> Result<u64, OsError> {
    let now = (config.wall_clock)();
    let since = now.checked_sub(EPOCH_2026).map(|since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
    match (since, config.tokens_above) {
        (None, None) => Err(OsError::operator(format!(
            "the wall clock says {} s since 1970, which is before 2026: a new counter would start too low; set the \
             clock, or say above which token N to start with `?tokens_above=N` (0 if these locks never were fenced)",
            now.as_secs()
        ))),
        (since, above) => Ok(since.unwrap_or(0).max(above.unwrap_or(0)).max(known)),
    }
}

/// Files are readable and writable for the users who may write in the directory.
fn file_mode(dir_mode: u32) -> u32 {
    match (dir_mode & 0o002 != 0, dir_mode & 0o020 != 0) {
        (true, _) => 0o666,
        (false, true) => 0o660,
        (false, false) => 0o600,
    }
}

/// Refuses a filesystem without reliable flocks before anything is created there.
fn check_filesystem(config: &Config) -> Result<(), OsError> {
    let mut there = config.path.as_path();
    let file = loop {
        match File::open(there) {
            Ok(file) => break file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => match there.parent() {
                Some(parent) => there = parent,
                None => return Err(OsError::Error(explain("open", there, e))),
            },
            Err(e) => return Err(OsError::Error(explain("open", there, e))),
        }
    };
    let magic = fs_type::magic_of(&file).map_err(|e| OsError::Error(explain("look at", there, e)))?;
    match fs_type::refusal(magic, config.fuse_allowed) {
        None => Ok(()),
        Some(why) => Err(OsError::Error(BackendError::new(
            BackendErrorKind::Unsupported,
            format!("`{}` can't hold locks: {why}", config.path.display()),
        ))),
    }
}
