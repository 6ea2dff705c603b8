//! What this client writes down of its locks, for `lockkeeper verify` (docs/verify.md).
//!
//! Asked for by `?history=FILE` in a URL, or by `LOCKKEEPER_HISTORY=FILE` for all clients of a process. Each
//! event is one system call; without a history, an acquire pays for one comparison.

use std::path::Path;
use std::sync::Arc;

use lockkeeper_backend::{
    BackendError, BackendErrorKind, BootInstant, HolderState, LockInfo, Reach, hex, random_bytes,
};
use lockkeeper_core::{LockName, ModeKind, Token, TokenStatus};
use lockkeeper_history::{
    DeniedEvent, DowngradedEvent, EndedEvent, GrantedEvent, HistoryEvent, HistoryWriter, HoldEnd, HoldMode,
    ListedEvent, SlotOf, StatusEvent, TokenAnswer, host_clock, service_of,
};

use crate::error::AcquireError;
use crate::guard::Guard;
use crate::kind::Kind;
use crate::lock::Lock;
use crate::observe;

/// The file, for clients whose URL names none.
pub(crate) const FILE_VARIABLE: &str = "LOCKKEEPER_HISTORY";
/// The name of the lock service in histories, for those whose clients use different addresses.
const SERVICE_VARIABLE: &str = "LOCKKEEPER_HISTORY_SERVICE";

/// The history of one client.
#[derive(Clone)]
pub(crate) struct Recorder {
    history: HistoryWriter,
    /// The URL without what differs between clients: user, password and parameters.
    service: Arc<str>,
}

/// A hold that is in a history. It is ended there once.
pub(crate) struct RecordedHold {
    recorder: Recorder,
    number: u64,
}

impl Recorder {
    /// # Errors
    /// The file can't be written.
    pub(crate) fn open(file: &Path, url: &str, label: &str, reach: Reach) -> Result<Self, BackendError> {
        let failed = |error| {
            let what = format!("the history `{}` can't be written", file.display());
            BackendError::caused(BackendErrorKind::Operator, what, error)
        };
        let random = random_bytes::<8>()?;
        // Without a name of the clock, it is one that nobody else has: then nothing is compared by time.
        let clock = host_clock().unwrap_or_else(|_| hex(&random));
        let now = BootInstant::now().as_nanos();
        let of = match reach {
            Reach::Network => String::new(),
            Reach::Process if service_of(url, "") == "memory:" => format!("client {}", hex(&random)),
            Reach::Process => format!("process {} at {clock}", std::process::id()),
            _ => clock.clone(),
        };
        let history =
            HistoryWriter::append(file, hex(&random), clock, label.to_owned(), now).map_err(failed)?;
        let service = std::env::var(SERVICE_VARIABLE).unwrap_or_else(|_| service_of(url, &of));
        Ok(Self { history, service: service.into() })
    }

    fn write(&self, event: HistoryEvent) {
        self.history.write(BootInstant::now().as_nanos(), event);
    }

    /// An acquire was granted. `at` was read when the hold was valid.
    pub(crate) fn granted(&self, at: BootInstant, grant: RecordedGrant<'_>) -> RecordedHold {
        let number = self.history.next_hold();
        let RecordedGrant { names, mode, subtree, permits, token, cached, asked, queued } = grant;
        let event = GrantedEvent {
            hold: number,
            service: self.service.to_string(),
            locks: texts(names),
            subtree,
            mode: match mode {
                ModeKind::Exclusive => HoldMode::Exclusive,
                ModeKind::Shared => HoldMode::Shared,
                ModeKind::Permit => HoldMode::Permit,
            },
            slots: permits.iter().map(|it| SlotOf { slot: it.slot, limit: it.limit }).collect(),
            token: token.map(Token::get),
            cached,
            asked: asked.as_nanos(),
            queued: queued.map(BootInstant::as_nanos),
        };
        self.history.write(at.as_nanos(), HistoryEvent::Granted(event));
        RecordedHold { recorder: self.clone(), number }
    }

    /// An acquire has ended without a hold.
    pub(crate) fn denied(&self, names: &[LockName], asked: BootInstant, why: &str) {
        let (service, locks, asked) = (self.service.to_string(), texts(names), asked.as_nanos());
        self.write(HistoryEvent::Denied(DeniedEvent { service, locks, asked, why: why.to_owned() }));
    }

    /// The service was asked about a token.
    pub(crate) fn status(&self, name: &LockName, token: Token, asked: BootInstant, status: &TokenStatus) {
        let answer = match status {
            TokenStatus::Current => TokenAnswer::Current,
            TokenStatus::NotCurrent { .. } => TokenAnswer::NotCurrent,
            TokenStatus::NeverIssued => TokenAnswer::NeverIssued,
        };
        let (service, lock) = (self.service.to_string(), name.as_str().to_owned());
        let (token, asked) = (token.get(), asked.as_nanos());
        self.write(HistoryEvent::Status(StatusEvent { service, lock, token, asked, answer }));
    }

    /// The service was asked who holds a lock. Only a whole list says who does not.
    pub(crate) fn listed(&self, info: &LockInfo, asked: BootInstant) {
        let live = || info.holds.iter().filter(|hold| !matches!(hold.state, HolderState::Closed { .. }));
        let tokens: Vec<u64> = live().filter_map(|hold| hold.token).map(Token::get).collect();
        if tokens.len() != live().count() || info.holds.len() as u64 != info.hold_count as u64 {
            return;
        }
        let (service, lock) = (self.service.to_string(), info.name.as_str().to_owned());
        self.write(HistoryEvent::Listed(ListedEvent { service, lock, asked: asked.as_nanos(), tokens }));
    }
}

/// What was granted.
pub(crate) struct RecordedGrant<'a> {
    pub(crate) names: &'a [LockName],
    pub(crate) mode: ModeKind,
    pub(crate) subtree: bool,
    pub(crate) permits: &'a [lockkeeper_core::PermitGrant],
    pub(crate) token: Option<Token>,
    pub(crate) cached: bool,
    pub(crate) asked: BootInstant,
    /// When it was known to wait in its place of a queue that promises the order of arrival.
    pub(crate) queued: Option<BootInstant>,
}

impl RecordedHold {
    /// The client no longer counts on the hold, since `until`.
    pub(crate) fn ended(self, until: BootInstant, is_lost: bool) {
        let how = if is_lost { HoldEnd::Lost } else { HoldEnd::Released };
        self.recorder.write(HistoryEvent::Ended(EndedEvent {
            hold: self.number,
            until: until.as_nanos(),
            how,
        }));
    }

    /// From this moment on others may share the hold. Written before the service is asked: whether it has
    /// done so is not always known.
    pub(crate) fn downgrades(&self, asked: BootInstant) {
        let event = DowngradedEvent { hold: self.number, asked: asked.as_nanos() };
        self.recorder.history.write(asked.as_nanos(), HistoryEvent::Downgraded(event));
    }
}

/// Each name once, in byte order (N1): the order of the permits.
fn texts(names: &[LockName]) -> Vec<String> {
    let mut texts: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
    texts.sort_unstable();
    texts.dedup();
    texts
}

impl<F: Kind> Lock<F> {
    /// Writes the result to the client's history.
    pub(crate) fn record(&self, result: &mut Result<Guard<F>, AcquireError>, asked: BootInstant) {
        let (Some(recorder), Ok(names)) = (&self.core.recorder, &self.names) else { return };
        let subtree = self.options.subtree;
        let why = match result {
            Ok(guard) => {
                if guard.record(recorder, names, (self.mode.kind(), subtree), asked) {
                    return;
                }
                "lost-at-once"
            }
            Err(_) => observe::outcome(result),
        };
        recorder.denied(names, asked, why);
    }
}
