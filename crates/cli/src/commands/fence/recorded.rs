//! What `fence` writes into the history of the job around it (docs/verify.md).

use std::env::{var, var_os};
use std::path::Path;

use lockkeeper::{BootInstant, Mode};
use lockkeeper_fence::{FileError, FileFence, Section};
use lockkeeper_history::{EnteredEvent, FenceVerdict, HistoryEvent, HistoryWriter, host_clock, service_of};

use crate::exit::{CANNOT_CREATE, Failure};

/// The history of a job that has one.
pub(super) struct FenceHistory {
    history: HistoryWriter,
    asked: u64,
}

impl FenceHistory {
    /// The history that `LOCKKEEPER_HISTORY` names.
    ///
    /// # Errors
    /// It can't be written.
    pub(super) fn of_environment() -> Result<Option<Self>, Failure> {
        let Some(file) = var_os("LOCKKEEPER_HISTORY") else { return Ok(None) };
        let asked = BootInstant::now().as_nanos();
        let by = format!("fence {} {asked}", std::process::id());
        let open =
            || HistoryWriter::append(Path::new(&file), by, host_clock()?, "lockkeeper fence".into(), asked);
        match open() {
            Ok(history) => Ok(Some(Self { history, asked })),
            Err(error) => {
                let what = format!("cannot write the history `{}`", Path::new(&file).display());
                Err(Failure::system(CANNOT_CREATE, &what, &error))
            }
        }
    }

    /// The fence has decided. Readers need not come in the order of their tokens.
    pub(super) fn checked(&self, fence: &FileFence, section: Section, result: &Result<(), FileError>) {
        let verdict = match result {
            Ok(()) => FenceVerdict::Accepted,
            Err(FileError::Refused(_)) => FenceVerdict::Stale,
            Err(_) => FenceVerdict::Unknown,
        };
        if section.mode() == Mode::Shared {
            return;
        }
        let slot = section.slot().map_or_else(String::new, |slot| format!("#{slot}"));
        let service = var("LOCKKEEPER_HISTORY_SERVICE");
        let entered = EnteredEvent {
            resource: format!("{}{slot}", fence.path().display()),
            service: service.unwrap_or_else(|_| service_of(&var("LOCKKEEPER_URL").unwrap_or_default(), "")),
            lock: var("LOCKKEEPER_NAME").unwrap_or_default(),
            token: section.token().get(),
            asked: self.asked,
            verdict,
        };
        self.history.write(BootInstant::now().as_nanos(), HistoryEvent::Entered(entered));
    }
}
