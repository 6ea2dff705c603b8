//! Exit codes, all of them, and what goes to standard error with each. `docs/cli.md` has the same table; a test
//! compares.

use std::io::ErrorKind;
use std::sync::Arc;

use lockkeeper::{AcquireError, BackendError, BackendErrorKind, ConnectError, Unsupported};

/// Done.
pub const OK: u8 = 0;
/// The answer is no: a token that is not current; `torture`: updates were lost, a token fell, or nothing was put to the
/// test.
pub const NO: u8 = 1;
/// Wrong arguments, names, URLs or option values.
pub const USAGE: u8 = 64;
/// A lock service is out of reach or did not answer; or ours can't listen where it should.
pub const UNAVAILABLE: u8 = 69;
/// A bug of ours.
pub const INTERNAL: u8 = 70;
/// A lock directory, a data directory, a status file or a manual page can't be created; `restore`: the data directory is
/// not empty.
pub const CANNOT_CREATE: u8 = 73;
/// Reading or writing failed, the disk is full for example; or what is stored is damaged or newer than this program.
pub const IO: u8 = 74;
/// `run`: the lock was not free, or not in time (`--busy-exit` changes it). `serve`: another process has the address or
/// the data directory.
pub const BUSY: u8 = 75;
/// `run`: the lock was lost while the command ran (`--lost-exit` changes it).
pub const LOST: u8 = 76;
/// Not permitted: by the mode of a file or directory, or by a read-only filesystem.
pub const PERMISSION: u8 = 77;
/// No place to keep locks is configured and none can be found. `serve`: new data need a first token, and the clock can't
/// give one. `restore`: the clock is behind the backup.
pub const CONFIG: u8 = 78;
/// `fence`: the token is stale.
pub const STALE: u8 = 79;
/// `run`: the command can't be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// `run`: the command was not found.
pub const NOT_FOUND: u8 = 127;

/// Every code of ours, as `docs/cli.md` lists them.
pub const ALL: [u8; 14] = [
    OK,
    NO,
    USAGE,
    UNAVAILABLE,
    INTERNAL,
    CANNOT_CREATE,
    IO,
    BUSY,
    LOST,
    PERMISSION,
    CONFIG,
    STALE,
    NOT_EXECUTABLE,
    NOT_FOUND,
];

/// An end of the program that is not success: one line for people, a code for scripts.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What was wrong, the value, what to do.
    pub message: String,
}

impl Failure {
    /// A failure with its code.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A failure of the system; `fallback` unless its error says more.
    #[must_use]
    pub fn system(fallback: u8, doing: &str, error: &std::io::Error) -> Self {
        Self::new(code_of(error).unwrap_or(fallback), format!("{doing}: {error}"))
    }

    /// Says it on standard error.
    #[must_use]
    pub fn report(&self) -> u8 {
        if !self.message.is_empty() {
            crate::output::say(&self.message);
        }
        self.code
    }
}

/// An error with all its causes, each once.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

/// The code that says most about an error of the system.
fn code_of(error: &std::io::Error) -> Option<u8> {
    use ErrorKind as Kind;
    match error.kind() {
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Some(PERMISSION),
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Some(IO),
        _ => None,
    }
}

/// The system's error, somewhere below.
fn system_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // A shared cause shows as its `Arc`.
        let shared = error.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>();
        let found = shared.map_or_else(|| error.downcast_ref(), |shared| shared.downcast_ref());
        if found.is_some() {
            return found;
        }
        cause = error.source();
    }
    None
}

/// The code of an error with a system's error somewhere below it.
pub(crate) fn code_below(error: &(dyn std::error::Error + 'static)) -> Option<u8> {
    system_error(error).and_then(code_of)
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let code = match error.kind {
            BackendErrorKind::Refused | BackendErrorKind::Unsupported => USAGE,
            BackendErrorKind::Unreachable => UNAVAILABLE,
            _ => code_below(&error).unwrap_or(IO),
        };
        Self::new(code, chain(&error))
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Backend(error) => {
                let missing = system_error(&error).is_some_and(|below| {
                    matches!(below.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
                });
                let failure = Self::from(error);
                if missing { Self { code: CANNOT_CREATE, ..failure } } else { failure }
            }
            other => Self::new(USAGE, chain(&other)),
        }
    }
}

impl From<Unsupported> for Failure {
    fn from(error: Unsupported) -> Self {
        Self::new(USAGE, chain(&error))
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        let code = match &error {
            AcquireError::Backend(_) => {
                let AcquireError::Backend(error) = error else { unreachable!("matched above") };
                return error.into();
            }
            AcquireError::Busy(_) | AcquireError::TimedOut { .. } => BUSY,
            AcquireError::Name(_)
            | AcquireError::Invalid { .. }
            | AcquireError::Limit(_)
            | AcquireError::Unsupported(_) => USAGE,
            _ => UNAVAILABLE,
        };
        Self::new(code, chain(&error))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(code_of(&error).unwrap_or(IO), chain(&error))
    }
}
