//! All exit codes of the program. `docs/cli.md` lists the same codes, with their meanings for users; a test
//! checks that no code is missing there.

use std::io::ErrorKind;
use std::sync::Arc;

use lockkeeper::url::UrlError;
use lockkeeper::{AcquireError, BackendError, BackendErrorKind, ConnectError, Unsupported};

/// Success.
pub const OK: u8 = 0;
/// A negative result. `check-token`, `break`: the token is not current. `torture`: updates were lost, a token
/// did not rise, or the run tested nothing.
pub const NO: u8 = 1;
/// Wrong arguments, names, URLs or option values.
pub const USAGE: u8 = 64;
/// A lock service, or the server of a fence, is unreachable or did not answer. `serve`: the listen address
/// can't be bound. `torture`: the workers made no progress, or the resource can't be used.
pub const UNAVAILABLE: u8 = 69;
/// Internal error: usually a bug in this program. `run`: the guardian was killed or could not be started.
pub const INTERNAL: u8 = 70;
/// A lock directory, a data directory, a status file or the ledger of `torture` can't be created; `restore`,
/// and `serve` without data: the data directory is not empty.
pub const CANNOT_CREATE: u8 = 73;
/// Reading or writing failed (for example, the disk is full), or the stored data are damaged or newer than
/// this program.
pub const IO: u8 = 74;
/// `run`, `doctor`: the lock was not free, or not within the wait limit (for `run`, `--busy-exit` changes the
/// code). `break --wait`: the hold has not ended within the wait limit. `serve`: another process has the
/// address or the data directory.
pub const BUSY: u8 = 75;
/// `run`: the lock was lost before the command was started or while it ran (`--lost-exit` changes the code);
/// or its lease was to end within the grace, so the command was not started.
pub const LOST: u8 = 76;
/// Permission denied: by a file or directory mode, or a read-only filesystem; or by the lock service, which
/// refuses the password, or whose user lacks a permission.
pub const PERMISSION: u8 = 77;
/// No lock directory is configured and no default can be determined. `serve`: a new data directory needs a
/// lower bound for its first token, and the clock can't provide one; or this node may not run with its data,
/// for example because the data belong to another node, or the node was removed from its cluster. `restore`:
/// the clock is behind the backup.
pub const CONFIG: u8 = 78;
/// `fence`: the token is stale.
pub const STALE: u8 = 79;
/// `doctor`, `cluster status`: a node does not answer, knows no leader, has little room on its disk or can't
/// write its audit file; or a setting of the lock service spoils a promise.
pub const UNHEALTHY: u8 = 80;
/// `run`, `elect`: a deadlock. An enclosing `run` holds the lock, or its holder waits for a lock that an
/// enclosing `run` holds.
pub const DEADLOCK: u8 = 81;
/// `run`: the command can't be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// `run`: the command was not found. `pitfalls`, `conformance`: `lockkeeper-lab` was not found.
pub const NOT_FOUND: u8 = 127;

/// Every exit code of this program, in the order of `docs/cli.md`.
pub const ALL: [u8; 16] = [
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
    UNHEALTHY,
    DEADLOCK,
    NOT_EXECUTABLE,
    NOT_FOUND,
];

/// An unsuccessful end of the program: a one-line message and an exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The problem, the offending value, and the remedy.
    pub message: String,
    /// Whether a retry may succeed later: see [`BackendErrorKind::may_pass`].
    pub may_pass: bool,
}

impl Failure {
    /// A failure with an exit code and a message.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), may_pass: false }
    }

    /// The failure for a URL scheme whose cargo feature is off. Names the command that builds the feature in.
    #[must_use]
    pub fn not_compiled_in(scheme: &str, feature: &'static str) -> Self {
        Self::new(USAGE, UrlError::NotCompiledIn { scheme: scheme.to_owned(), feature }.to_string())
    }

    /// A failure from an OS error; the code is `fallback` unless the error kind implies a more specific one.
    #[must_use]
    pub fn system(fallback: u8, doing: &str, error: &std::io::Error) -> Self {
        Self::new(code_of(error).unwrap_or(fallback), format!("{doing}: {error}"))
    }
}

/// The error message followed by those of its sources, on one line; a source whose text is already included
/// is left out.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let own = cause.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        source = cause.source();
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The exit code that an OS error implies, or `None` if its kind implies none.
fn code_of(error: &std::io::Error) -> Option<u8> {
    use ErrorKind as Kind;
    match error.kind() {
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => Some(PERMISSION),
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Some(IO),
        _ => None,
    }
}

/// The first OS error in the chain of sources.
fn system_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // A shared source is in the chain as an `Arc`.
        let shared = error.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>();
        let found = shared.map_or_else(|| error.downcast_ref(), |shared| shared.downcast_ref());
        if found.is_some() {
            return found;
        }
        cause = error.source();
    }
    None
}

/// The exit code implied by the first OS error in the chain of sources.
pub(crate) fn code_below(error: &(dyn std::error::Error + 'static)) -> Option<u8> {
    system_error(error).and_then(code_of)
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let code = match error.kind {
            BackendErrorKind::Refused | BackendErrorKind::Unsupported => USAGE,
            BackendErrorKind::Unreachable | BackendErrorKind::LimitReached => UNAVAILABLE,
            BackendErrorKind::Denied => PERMISSION,
            BackendErrorKind::Deadlock => DEADLOCK,
            _ => code_below(&error).unwrap_or(IO),
        };
        // Adds this program's sources of the address, which the library does not know.
        let message = chain(&error)
            .replace("correct the address", "correct the address in `--locks` or LOCKKEEPER_URL");
        Self { code, message, may_pass: error.kind.may_pass() }
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
            AcquireError::Deadlock { .. } => DEADLOCK,
            AcquireError::Name(_)
            | AcquireError::Invalid { .. }
            | AcquireError::Limit(_)
            | AcquireError::Unsupported(_) => USAGE,
            _ => UNAVAILABLE,
        };
        Self { code, message: chain(&error), may_pass: error.may_pass() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(code_of(&error).unwrap_or(IO), chain(&error))
    }
}
