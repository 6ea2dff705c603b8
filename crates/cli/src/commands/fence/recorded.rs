//! What `fence` and `gate` write into a history (docs/verify.md).

use std::env::{var, var_os};
use std::path::Path;

use lockkeeper::{BootInstant, Mode};
use lockkeeper_fence::{FileError, FileFence, Section};
use lockkeeper_gate::{GateDecision, GateHistory};
use lockkeeper_history::{EnteredEvent, FenceVerdict, HistoryEvent, HistoryWriter, host_clock, service_of};

use crate::exit::{CANNOT_CREATE, Failure};

/// The history of a fence that has one.
pub(in crate::commands) struct FenceHistory {
    history: HistoryWriter,
    /// The service whose tokens the fence checks.
    service: String,
    began: u64,
}

impl FenceHistory {
    /// The history that `LOCKKEEPER_HISTORY` names. `url`: of the lock service, if no other name is given.
    ///
    /// # Errors
    /// It can't be written.
    pub(in crate::commands) fn of_environment(command: &str, url: &str) -> Result<Option<Self>, Failure> {
        let Some(file) = var_os("LOCKKEEPER_HISTORY") else { return Ok(None) };
        let began = BootInstant::now().as_nanos();
        let by = format!("{command} {} {began}", std::process::id());
        let open = || {
            HistoryWriter::append(Path::new(&file), by, host_clock()?, format!("lockkeeper {command}"), began)
        };
        match open() {
            Ok(history) => {
                let service = var("LOCKKEEPER_HISTORY_SERVICE").unwrap_or_else(|_| service_of(url, ""));
                Ok(Some(Self { history, service, began }))
            }
            Err(error) => {
                let what = format!("cannot write the history `{}`", Path::new(&file).display());
                Err(Failure::system(CANNOT_CREATE, &what, &error))
            }
        }
    }

    /// The file fence has decided.
    pub(super) fn checked(&self, fence: &FileFence, section: Section, result: &Result<(), FileError>) {
        let verdict = match result {
            Ok(()) => FenceVerdict::Accepted,
            Err(FileError::Refused(_)) => FenceVerdict::Stale,
            Err(_) => FenceVerdict::Unknown,
        };
        let lock = var("LOCKKEEPER_NAME").unwrap_or_default();
        self.entered(&fence.path().display().to_string(), lock, section, self.began, verdict);
    }

    /// Readers need not come in the order of their tokens, and permits come in that of their slot.
    fn entered(&self, resource: &str, lock: String, section: Section, asked: u64, verdict: FenceVerdict) {
        if section.mode() == Mode::Shared {
            return;
        }
        let slot = section.slot().map_or_else(String::new, |slot| format!("#{slot}"));
        let (service, token) = (self.service.clone(), section.token().get());
        let resource = format!("{resource}{slot}");
        let entered = EnteredEvent { resource, service, lock, token, asked, verdict };
        self.history.write(BootInstant::now().as_nanos(), HistoryEvent::Entered(entered));
    }
}

impl GateHistory for FenceHistory {
    fn now(&self) -> u64 {
        BootInstant::now().as_nanos()
    }

    fn decided(&self, decision: &GateDecision<'_>) {
        let verdict = if decision.is_accepted { FenceVerdict::Accepted } else { FenceVerdict::Stale };
        self.entered(decision.resource, decision.lock.to_owned(), decision.section, decision.asked, verdict);
    }
}
