//! What drivers have said, each line recorded with its time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Notify;

use super::Promise;
use super::history::{History, Moment, Wanted};
use super::protocol::{CommandError, ErrorKind, Granted, Hello, Said, Was};

/// The clock and the history of a run.
#[derive(Clone)]
pub(super) struct RunRecord {
    began: Instant,
    /// How long a driver may take to answer, and the lock service to come to a state.
    pub(super) patience: Duration,
    history: Arc<Mutex<History>>,
}

impl RunRecord {
    pub(super) fn new(patience: Duration) -> Self {
        Self { began: Instant::now(), patience, history: Arc::default() }
    }

    pub(super) fn now(&self) -> Moment {
        self.began.elapsed()
    }

    fn wrong(&self, text: String) {
        self.history().violation(Promise::Protocol, text);
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a driver has said so far.
#[derive(Default)]
pub(super) struct Log {
    state: Mutex<LogState>,
    changed: Notify,
}

#[derive(Default)]
pub(super) struct LogState {
    /// The first line, until it is taken.
    pub(super) hello: Option<Result<Hello, String>>,
    /// The driver's name, once it is known.
    name: String,
    has_begun: bool,
    pub(super) pending: BTreeMap<u64, DueAnswer>,
    pub(super) answers: BTreeMap<u64, Result<Value, CommandError>>,
    /// Refused lines without an id.
    pub(super) refusals: usize,
    /// The grants of holds, as indices of the history.
    pub(super) grants: BTreeMap<String, usize>,
    pub(super) lost: BTreeMap<String, Moment>,
    released: BTreeSet<String>,
    pub(super) has_ended: bool,
}

/// A command without an answer.
pub(super) struct DueAnswer {
    pub(super) sent: Moment,
    pub(super) kind: DueAnswerKind,
}

pub(super) enum DueAnswerKind {
    Acquire { hold: String, wanted: Wanted },
    Check { hold: String },
    Release { hold: String },
    Other,
}

impl Log {
    pub(super) fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `read` returns a value; `None` after `limit`.
    pub(super) async fn until<T>(
        &self,
        limit: Duration,
        mut read: impl FnMut(&mut LogState) -> Option<T>,
    ) -> Option<T> {
        let wait = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if let Some(value) = read(&mut self.state()) {
                    return value;
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, wait).await.ok()
    }
}

impl LogState {
    /// Records a line of the driver.
    fn hear(&mut self, line: &[u8], record: &RunRecord) {
        let now = record.now();
        let text = std::str::from_utf8(line)
            .map_err(|error| format!("a line is not UTF-8 ({error}): {:?}", String::from_utf8_lossy(line)));
        if !std::mem::replace(&mut self.has_begun, true) {
            let hello = text.and_then(|text| {
                serde_json::from_str::<Hello>(text).map_err(|error| format!("{error} in {text:?}"))
            });
            hello.as_ref().map_or("", |hello| &hello.driver).clone_into(&mut self.name);
            self.hello = Some(hello);
            return;
        }
        let wrong = |name: &str, why: String| record.wrong(format!("{name}: {why}"));
        let text = match text {
            Ok(text) => text,
            Err(why) => return wrong(&self.name, why),
        };
        match Said::parse(text) {
            Err(why) => wrong(&self.name, format!("{why}: {text:?}")),
            Ok(Said::Lost { hold }) => {
                if self.released.contains(&hold) {
                    wrong(&self.name, format!("it says that `{hold}` was lost, which it had released"));
                } else if self.lost.insert(hold.clone(), now).is_some() {
                    wrong(&self.name, format!("it says twice that `{hold}` was lost"));
                }
                match self.grants.get(&hold) {
                    Some(&grant) => record.history().lost(grant, now),
                    // The event may be written before the answer.
                    None if self.acquires(&hold) => {}
                    None => {
                        wrong(&self.name, format!("it says that `{hold}` was lost, which was never granted"))
                    }
                }
            }
            Ok(Said::Answer { id: None, answer: Err(_) }) => self.refusals += 1,
            Ok(Said::Answer { id, answer }) => {
                let pending = id.and_then(|id| Some((id, self.pending.remove(&id)?)));
                let Some((id, pending)) = pending else {
                    return wrong(&self.name, format!("an answer that is not due: {text:?}"));
                };
                let answered = self.answered(pending, &answer, now, &mut record.history());
                if let Err(why) = answered {
                    wrong(&self.name, format!("{why}: {text:?}"));
                }
                self.answers.insert(id, answer);
            }
        }
    }

    fn acquires(&self, hold: &str) -> bool {
        let is_its =
            |due: &DueAnswer| matches!(&due.kind, DueAnswerKind::Acquire { hold: it, .. } if it == hold);
        self.pending.values().any(is_its)
    }

    fn answered(
        &mut self,
        pending: DueAnswer,
        answer: &Result<Value, CommandError>,
        now: Moment,
        history: &mut History,
    ) -> Result<(), String> {
        let DueAnswer { sent, kind } = pending;
        match (kind, answer) {
            (DueAnswerKind::Acquire { hold, wanted }, Ok(ok)) => {
                let granted: Granted = parsed(ok)?;
                let grant = history.granted(wanted, sent, now, granted);
                if self.lost.contains_key(&hold) {
                    history.lost(grant, now);
                }
                self.grants.insert(hold, grant);
            }
            (DueAnswerKind::Acquire { hold, .. }, Err(_)) if self.lost.contains_key(&hold) => {
                return Err(format!("it said that `{hold}` was lost, which was never granted"));
            }
            (DueAnswerKind::Check { hold }, Ok(ok)) => {
                let granted: Granted = parsed(ok)?;
                if let Some(&grant) = self.grants.get(&hold) {
                    history.confirmed(grant, sent, granted.valid_ms);
                }
            }
            (DueAnswerKind::Check { hold }, Err(error)) if error.kind == ErrorKind::Lost => {
                if let Some(&grant) = self.grants.get(&hold) {
                    history.lost(grant, now);
                }
            }
            (DueAnswerKind::Release { hold }, Ok(ok)) => {
                let Released { was } = parsed(ok)?;
                if let Some(&grant) = self.grants.get(&hold)
                    && was == Was::Held
                {
                    history.was_held(grant, sent);
                    self.released.insert(hold);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[derive(serde::Deserialize)]
pub(super) struct Released {
    pub(super) was: Was,
}

pub(super) fn parsed<T: serde::de::DeserializeOwned>(ok: &Value) -> Result<T, String> {
    serde_json::from_value(ok.clone()).map_err(|error| error.to_string())
}

/// That the driver has ended, for [`Log::until`].
pub(super) fn ended<T>(log: &mut LogState) -> Option<Result<T, String>> {
    log.has_ended.then(|| Err("it has ended".to_owned()))
}

/// Records what a driver says, with its time, until it closes its standard output.
pub(super) fn listen(says: ChildStdout, log: Arc<Log>, record: RunRecord) {
    std::thread::spawn(move || {
        for line in BufReader::new(says).split(b'\n').map_while(std::io::Result::ok) {
            log.state().hear(&line, &record);
            log.changed.notify_waiters();
        }
        log.state().has_ended = true;
        log.changed.notify_waiters();
    });
}
