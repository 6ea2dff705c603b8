//! Objects of the store: reads and conditional puts until a deadline, and the classification of errors (P12).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use lockkeeper_backend::leased::StoreFailure;
use lockkeeper_backend::{BackendError, BackendErrorKind, BootInstant, CallError};
use lockkeeper_core::LockName;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, PutMode, PutOptions, UpdateVersion};
use tokio::time::{Instant, sleep, timeout_at};

use super::http::StoreAnswer;
use super::observed::{Observed, Sight};
use super::record::{LockRecord, OBJECT_BYTES_MAX, SUFFIX};
use super::settings::Settings;

/// Longest pause after the first write that lost a race, or the first refusal that passes; half of it on
/// average. It doubles each time, up to the second one: Google takes one write of an object a second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The codes of refusals after which the store has done nothing, and a later try may succeed.
const BUSY: [&str; 5] =
    // New credentials may arrive soon.
    ["ExpiredToken", "RequestThrottled", "ServerBusy", "SlowDown", "TooManyRequests"];

/// Why a call has no usable answer.
pub(super) type ObjectFailure = StoreFailure<Overtaken>;

/// The condition of a put did not hold, or another put of the object was under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overtaken;

/// The objects of one client.
pub(super) struct Objects {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) settings: Settings,
    pub(super) observed: Observed,
    trouble: Mutex<Option<BackendError>>,
}

/// An object as it was read.
pub(super) struct ReadObject {
    pub(super) bytes: Bytes,
    pub(super) version: UpdateVersion,
}

/// What a change does with a lock that was read.
pub(super) enum Next<T> {
    /// Nothing is written; this is the result.
    Is(T),
    /// This is written, on the condition that the object is unchanged; then this is the result.
    Write(LockRecord, T),
}

impl Objects {
    pub(super) fn new(store: Arc<dyn ObjectStore>, settings: Settings) -> Self {
        Self { store, settings, observed: Observed::default(), trouble: Mutex::default() }
    }

    /// The path of an object below the prefix; of the prefix itself without a name.
    ///
    /// # Errors
    /// Stores have no object with this name.
    pub(super) fn path(&self, name: &str) -> Result<Path, BackendError> {
        let path = match self.settings.prefix.as_str() {
            "" => Path::parse(name),
            prefix if name.is_empty() => Path::parse(prefix),
            prefix => Path::parse(format!("{prefix}/{name}")),
        };
        path.map_err(|error| {
            let what = format!("`{name}` can't be the name of an object: {error}");
            BackendError::new(BackendErrorKind::Refused, what)
        })
    }

    /// Why the last call had no answer; `None` if it had one.
    pub(super) fn trouble(&self) -> Option<BackendError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a call's answer.
    pub(super) async fn by<T>(
        &self,
        deadline: Instant,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, ObjectFailure> {
        let answer = timeout_at(deadline, call).await;
        let (result, trouble) = match answer {
            Ok(Ok(answer)) => (Ok(answer), None),
            Ok(Err(error)) => {
                let (failure, trouble) = self.classified(&error);
                (Err(failure), trouble)
            }
            Err(_) => {
                let what = format!("{} does not answer in time", self.settings.shown());
                (Err(ObjectFailure::IN_DOUBT), Some(BackendError::new(BackendErrorKind::Unreachable, what)))
            }
        };
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        result
    }

    /// Reads an object; `None` if there is none. Repeated until the deadline.
    pub(super) async fn get(
        &self,
        path: &Path,
        deadline: Instant,
    ) -> Result<Option<ReadObject>, ObjectFailure> {
        let mut pauses = Pauses::default();
        loop {
            let read = async {
                let got = match self.store.get_opts(path, GetOptions::default()).await {
                    Err(Error::NotFound { .. }) => return Ok(Ok(None)),
                    got => got?,
                };
                if got.meta.size > OBJECT_BYTES_MAX {
                    return Ok(Err(got.meta.size));
                }
                let version =
                    UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
                Ok(Ok(Some(ReadObject { bytes: got.bytes().await?, version })))
            };
            match self.by(deadline, read).await {
                Ok(Ok(read)) => return Ok(read),
                Ok(Err(size)) => {
                    let what = format!(
                        "the object `{path}` has {size} bytes, and no lock has more than {OBJECT_BYTES_MAX}"
                    );
                    return Err(ObjectFailure::Refused(BackendError::new(BackendErrorKind::Operator, what)));
                }
                Err(ObjectFailure::Silent(_)) if pauses.pause_until(deadline).await => {}
                // A read changes nothing.
                Err(failure) => return Err(failure.not_done()),
            }
        }
    }

    /// Puts an object on the condition that it has this version, or that it does not exist. Sent once.
    pub(super) async fn put(
        &self,
        path: &Path,
        bytes: Bytes,
        version: Option<UpdateVersion>,
        deadline: Instant,
    ) -> Result<UpdateVersion, ObjectFailure> {
        let mode = version.map_or(PutMode::Create, PutMode::Update);
        let put = self.store.put_opts(path, bytes.into(), PutOptions::from(mode));
        let put = self.by(deadline, put).await?;
        Ok(UpdateVersion { e_tag: put.e_tag, version: put.version })
    }

    /// Reads a lock.
    pub(super) async fn sight(&self, name: &LockName, deadline: Instant) -> Result<Sight, ObjectFailure> {
        let path = self.path(&format!("{name}{SUFFIX}")).map_err(ObjectFailure::Refused)?;
        let read = self.get(&path, deadline).await?;
        let now = BootInstant::now();
        let (version, record) = match read {
            None => (None, LockRecord::new()),
            Some(read) => {
                let record = LockRecord::read(name, &read.bytes).map_err(ObjectFailure::Refused)?;
                (Some(read.version), record)
            }
        };
        Ok(self.observed.see(name, version, record, now))
    }

    /// Changes a lock as `decide` says, which is called again each time that another client was first.
    /// `known`: a state to begin with in place of a read. `decide` must recognize what an earlier put of its
    /// own has done: a put whose answer is lost, or that is refused because of its own first copy, is
    /// followed by a read.
    pub(super) async fn change<T>(
        &self,
        name: &LockName,
        mut known: Option<Sight>,
        deadline: Instant,
        mut decide: impl FnMut(&Sight) -> Next<T>,
    ) -> Result<T, ObjectFailure> {
        let path = self.path(&format!("{name}{SUFFIX}")).map_err(ObjectFailure::Refused)?;
        let mut pauses = Pauses::default();
        let mut doubt = false;
        let failed = |failure: ObjectFailure, doubt| match (failure, doubt) {
            (failure, false) => failure,
            (ObjectFailure::Refused(error), true) => {
                ObjectFailure::Silent(CallError { sent: true, ..CallError::refused(error) })
            }
            (failure, true) => failure.in_doubt(),
        };
        loop {
            let sight = match known.take() {
                Some(sight) => sight,
                None => self.sight(name, deadline).await.map_err(|failure| failed(failure, doubt))?,
            };
            let (record, result) = match decide(&sight) {
                Next::Is(result) => return Ok(result),
                Next::Write(record, result) => (record, result),
            };
            let (record, bytes) =
                record.sealed().map_err(|error| failed(ObjectFailure::Refused(error), doubt))?;
            let failure = match self.put(&path, bytes, sight.version, deadline).await {
                Ok(version) => {
                    self.observed.see(name, Some(version), record, BootInstant::now());
                    return Ok(result);
                }
                Err(failure) => failure,
            };
            self.observed.is_outdated(name);
            match &failure {
                ObjectFailure::Refused(_) => return Err(failed(failure, doubt)),
                ObjectFailure::Silent(error) => doubt |= error.sent,
                ObjectFailure::Answered(Overtaken) => {}
            }
            if !pauses.pause_until(deadline).await {
                return Err(match failure {
                    ObjectFailure::Answered(Overtaken) => failed(ObjectFailure::NOT_DONE, doubt),
                    failure => failed(failure, doubt),
                });
            }
        }
    }

    /// Classifies an error; with the error to show for it, if the store did not answer.
    pub(super) fn classified(&self, error: &Error) -> (ObjectFailure, Option<BackendError>) {
        let at = self.settings.shown();
        let refused = |kind, what: String| (ObjectFailure::Refused(BackendError::new(kind, what)), None);
        match error {
            Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotModified { .. } => {
                return (ObjectFailure::Answered(Overtaken), None);
            }
            Error::NotFound { .. } => {
                return refused(BackendErrorKind::Operator, format!("{at}: there is no such bucket"));
            }
            _ => {}
        }
        let mut cause: &(dyn std::error::Error + 'static) = error;
        let mut kind = None;
        loop {
            if let Some(answer) = cause.downcast_ref::<StoreAnswer>() {
                return (refusal(&at, answer), None);
            }
            kind = cause.downcast_ref::<HttpError>().map(HttpError::kind).or(kind);
            match cause.source() {
                Some(source) => cause = source,
                None => break,
            }
        }
        let trouble =
            BackendError::new(BackendErrorKind::Unreachable, format!("{at} does not answer ({cause})"));
        match kind {
            Some(HttpErrorKind::Connect) => (ObjectFailure::NOT_DONE, Some(trouble)),
            Some(_) => (ObjectFailure::IN_DOUBT, Some(trouble)),
            // The store's client refuses before it sends: no credentials, for example.
            None => refused(BackendErrorKind::Denied, format!("{at} can't be used: {error}")),
        }
    }
}

/// What a refusal of the store means.
fn refusal(at: &str, answer: &StoreAnswer) -> ObjectFailure {
    let refused = |kind, what: String| ObjectFailure::Refused(BackendError::new(kind, what));
    let told = format!("{at} refuses: {answer}");
    let code = answer.code.as_str();
    match answer.status {
        status if status == StatusCode::TOO_MANY_REQUESTS || BUSY.contains(&code) => {
            ObjectFailure::passing(told)
        }
        StatusCode::NOT_IMPLEMENTED => refused(BackendErrorKind::Refused, told),
        // It may have failed after the write.
        status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => {
            ObjectFailure::passing(told).in_doubt()
        }
        _ if code == "RequestTimeTooSkewed" => {
            let advice = "the clock of this machine is wrong by more than requests may be old: set it (NTP)";
            refused(BackendErrorKind::Operator, format!("{told}; {advice}"))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => refused(BackendErrorKind::Denied, told),
        status if status.is_redirection() => {
            refused(BackendErrorKind::Refused, format!("{told}; is the bucket in this region (`region=`)?"))
        }
        _ => refused(BackendErrorKind::Refused, told),
    }
}

/// Random pauses that double.
#[derive(Default)]
struct Pauses(u32);

impl Pauses {
    /// Waits before the next try; `false` if the deadline would be over by then.
    async fn pause_until(&mut self, deadline: Instant) -> bool {
        let longest = PAUSES.0.saturating_mul(1 << self.0.min(16)).min(PAUSES.1);
        self.0 += 1;
        let pause = longest.mul_f64(fastrand::f64());
        let is_in_time = Instant::now() + pause < deadline;
        if is_in_time {
            sleep(pause).await;
        }
        is_in_time
    }
}
