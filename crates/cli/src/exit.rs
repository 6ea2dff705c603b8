//! Exit codes, all of them, and what goes to standard error with each. `docs/cli.md` has the same table; a test
//! compares.

use lockkeeper::{AcquireError, BackendError, BackendErrorKind, ConnectError, Unsupported};

/// Done.
pub const OK: u8 = 0;
/// The answer is no: a token that is not current.
pub const NO: u8 = 1;
/// Wrong arguments, names, URLs or option values.
pub const USAGE: u8 = 64;
/// A lock service is out of reach or did not answer.
pub const UNAVAILABLE: u8 = 69;
/// A bug of ours.
pub const INTERNAL: u8 = 70;
/// A file, a directory or a disk is in the way; damaged state.
pub const IO: u8 = 74;
/// `run`: the lock was not free, or not in time (`--busy-exit` changes it).
pub const BUSY: u8 = 75;
/// `run`: the lock was lost while the command ran (`--lost-exit` changes it).
pub const LOST: u8 = 76;
/// No place to keep locks is configured and none can be found.
pub const CONFIG: u8 = 78;
/// `fence`: the token is stale.
pub const STALE: u8 = 79;
/// `run`: the command can't be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// `run`: the command was not found.
pub const NOT_FOUND: u8 = 127;

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

    /// Says it on standard error.
    #[must_use]
    pub fn report(&self) -> u8 {
        if !self.message.is_empty() {
            eprintln!("lockkeeper: {}", self.message);
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

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let code = match error.kind {
            BackendErrorKind::Refused | BackendErrorKind::Unsupported => USAGE,
            BackendErrorKind::Unreachable => UNAVAILABLE,
            _ => IO,
        };
        Self::new(code, chain(&error))
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Backend(error) => error.into(),
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
            AcquireError::Name(_) | AcquireError::Invalid { .. } | AcquireError::Unsupported(_) => USAGE,
            _ => UNAVAILABLE,
        };
        Self::new(code, chain(&error))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(IO, chain(&error))
    }
}
