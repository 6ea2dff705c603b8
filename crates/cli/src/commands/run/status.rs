//! The status file: the outcome, for scripts that must distinguish the command's exit code from this
//! program's.

use std::io;
use std::path::{Path, PathBuf};

use lockkeeper::LossCause;
use nix::unistd::{AccessFlags, access};
use serde_json::json;

use crate::exit::{self, Failure};
use crate::{guardian, output};

/// The outcome of a `run`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum RunOutcome {
    /// The command ran under the lock; `exit_code` or `signal` gives its outcome.
    Ran,
    /// The command had been done before (`--once-key`), and was not run again.
    AlreadyDone,
    /// The lock was not free.
    Busy,
    /// The lock did not become free in time.
    TimedOut,
    /// The lock was lost before the command was started, or while it ran.
    Lost,
    /// The command did not run, or could not be observed until its end; `error` gives the reason.
    #[default]
    Failed,
}

/// The contents of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Status {
    pub(super) outcome: RunOutcome,
    pub(super) name: String,
    pub(super) token: Option<u64>,
    pub(super) slot: Option<u32>,
    pub(super) child: Option<guardian::CommandEnd>,
    pub(super) lost: Option<LossCause>,
    pub(super) exit: u8,
    pub(super) error: Option<String>,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            outcome: RunOutcome::Failed,
            name: String::new(),
            token: None,
            slot: None,
            child: None,
            lost: None,
            exit: exit::OK,
            error: None,
        }
    }
}

/// A status file that was found to be writable.
pub(super) struct StatusFile {
    path: PathBuf,
}

impl StatusFile {
    /// Checks that the file can be created in its directory. Called before the command runs, so that a wrong
    /// path is reported before the command is started.
    pub(super) fn prepare(path: &Path) -> Result<Self, Failure> {
        let directory = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
            Some(parent) => parent.to_owned(),
            None => PathBuf::from("/"),
        };
        if path.file_name().is_none() || path.is_dir() {
            let text = format!("the status file `{}` is a directory; give it a name", path.display());
            return Err(Failure::new(exit::CANNOT_CREATE, text));
        }
        access(&directory, AccessFlags::W_OK | AccessFlags::X_OK)
            .map_err(|errno| cannot_write(path, &io::Error::from(errno)))?;
        Ok(Self { path: path.to_owned() })
    }

    /// Writes the file atomically: readers never see a partial file.
    pub(super) fn write(self, status: &Status) -> Result<(), Failure> {
        let (code, signal) = match status.child {
            Some(guardian::CommandEnd::Code(code)) => (Some(code), None),
            Some(guardian::CommandEnd::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let json = json!({
            "outcome": match status.outcome {
                RunOutcome::Ran => "ran",
                RunOutcome::AlreadyDone => "already-done",
                RunOutcome::Busy => "busy",
                RunOutcome::TimedOut => "timed-out",
                RunOutcome::Lost => "lost",
                RunOutcome::Failed => "failed",
            },
            "name": status.name,
            "token": status.token,
            "slot": status.slot,
            "exit_code": code,
            "signal": signal,
            "lost": status.lost.map(LossCause::as_str),
            "exit": status.exit,
            "error": status.error,
        });
        output::replace(&self.path, &format!("{json}\n")).map_err(|error| cannot_write(&self.path, &error))
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::system(exit::CANNOT_CREATE, &format!("cannot write the status file `{}`", path.display()), error)
}
