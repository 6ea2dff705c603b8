//! A worker's log of its steps, one line each, and its parser.
//!
//! Invariant on which all results depend: a step is in the file before the worker continues. So the journal
//! of a worker that was killed at any point contains all steps that the worker completed. An update counts as
//! acknowledged if, and only if, the journal says so.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use lockkeeper::{BootInstant, Token};

/// The clock of workers and conductor: nanoseconds since boot, the same for all processes of a machine.
pub(super) fn now() -> u64 {
    BootInstant::now().as_nanos()
}

/// A step of a worker, or a reply that it received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum JournalStep {
    /// The worker requests the lock.
    Asked,
    /// The worker has acquired the lock.
    Granted { token: Option<Token> },
    /// The worker has raised the marks by `enter`.
    Entered,
    /// The worker has read the ledger.
    Read,
    /// The worker has found its hold lost, and wrote nothing. `believed_until`: when the hold ended for the
    /// worker: at its deadline, or at the library's report of the loss if that was earlier.
    GaveUp { believed_until: Option<u64> },
    /// The worker is about to write this update.
    Writes { update: String },
    /// The write of this update succeeded.
    Acknowledged { update: String },
    /// The fence refused the operation.
    Stale { offered: u64, highest: u64 },
    /// The lock or the resource failed; a write in progress may or may not have taken effect.
    Trouble { why: String },
    /// The worker is about to release the lock.
    Releasing,
}

impl std::fmt::Display for JournalStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let or_none =
            |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        match self {
            Self::Asked => write!(f, "asked"),
            Self::Granted { token } => write!(f, "granted {}", or_none(token.map(Token::get))),
            Self::Entered => write!(f, "entered"),
            Self::Read => write!(f, "read"),
            Self::GaveUp { believed_until } => write!(f, "gave-up {}", or_none(*believed_until)),
            Self::Writes { update } => write!(f, "writes {update}"),
            Self::Acknowledged { update } => write!(f, "acknowledged {update}"),
            Self::Stale { offered, highest } => write!(f, "stale {offered} {highest}"),
            Self::Trouble { why } => write!(f, "trouble {}", why.replace(char::is_control, " ")),
            Self::Releasing => write!(f, "releasing"),
        }
    }
}

impl FromStr for JournalStep {
    type Err = ();
    fn from_str(line: &str) -> Result<Self, ()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        let or_none = |text: &str| if text == "-" { Ok(None) } else { number(text).map(Some) };
        let update = rest.to_owned();
        Ok(match word {
            "asked" => Self::Asked,
            "granted" => {
                let token = or_none(rest)?;
                Self::Granted { token: token.map(|token| Token::new(token).ok_or(())).transpose()? }
            }
            "entered" => Self::Entered,
            "read" => Self::Read,
            "gave-up" => Self::GaveUp { believed_until: or_none(rest)? },
            "writes" => Self::Writes { update },
            "acknowledged" => Self::Acknowledged { update },
            "stale" => {
                let (offered, highest) = rest.split_once(' ').ok_or(())?;
                Self::Stale { offered: number(offered)?, highest: number(highest)? }
            }
            "trouble" => Self::Trouble { why: update },
            "releasing" => Self::Releasing,
            _ => return Err(()),
        })
    }
}

/// The steps of one worker, each with its time.
pub(super) type Steps = Vec<(u64, JournalStep)>;

/// A journal opened for appending.
pub(super) struct Journal(File);

impl Journal {
    pub(super) fn create(path: &Path) -> std::io::Result<Self> {
        File::options().create_new(true).append(true).open(path).map(Self)
    }

    /// Appends a step with one system call. A kill during the call can leave a partial line, which the reader
    /// ignores.
    pub(super) fn note(&mut self, step: &JournalStep) -> std::io::Result<()> {
        self.0.write_all(format!("{} {step}\n", now()).as_bytes())
    }
}

/// The steps of a worker with their times, in order. A last line without a newline was truncated by a kill
/// and is ignored: the worker did not act on it.
///
/// # Errors
/// The file can't be read, or has an invalid line.
pub(super) fn read(path: &Path) -> std::io::Result<Steps> {
    let text = std::fs::read_to_string(path)?;
    let Some(end) = text.rfind('\n') else { return Ok(Vec::new()) };
    let step = |line: &str| -> Option<(u64, JournalStep)> {
        let (at, step) = line.split_once(' ')?;
        Some((at.parse().ok()?, step.parse().ok()?))
    };
    let lines = text[..end].split('\n').map(|line| {
        let damaged = || format!("{}: `{line}` is no line of a worker's log", path.display());
        step(line).ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, damaged()))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_round_trips() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("worker");
        let update = || "3.17".to_owned();
        let steps = [
            JournalStep::Asked,
            JournalStep::Granted { token: None },
            JournalStep::Granted { token: Token::new(17) },
            JournalStep::Entered,
            JournalStep::Read,
            JournalStep::GaveUp { believed_until: None },
            JournalStep::GaveUp { believed_until: Some(5) },
            JournalStep::Writes { update: update() },
            JournalStep::Acknowledged { update: update() },
            JournalStep::Stale { offered: 4, highest: 5 },
            JournalStep::Trouble { why: "no route to host".to_owned() },
            JournalStep::Releasing,
        ];
        let mut journal = Journal::create(&path).unwrap();
        for step in &steps {
            journal.note(step).unwrap();
        }
        let read: Vec<JournalStep> = read(&path).unwrap().into_iter().map(|(_, step)| step).collect();
        assert_eq!(read, steps);
    }

    #[test]
    fn invalid_lines_are_refused_and_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("worker");
        std::fs::write(&path, "5 asked\n6 gra").unwrap();
        assert_eq!(read(&path).unwrap(), [(5, JournalStep::Asked)], "cut by a kill");
        for line in ["", "asked", "5 rested", "5 granted x", "5 granted 0", "5 stale 4", "x asked"] {
            std::fs::write(&path, format!("5 asked\n{line}\n")).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("`{line}`")), "{error}");
        }
    }
}
