//! The library's calls to a lock directory.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_backend::{Answer, Call, CallError, Conn, Push, Responder, Spec};
use lockkeeper_core::{Seq, limits};
use tokio::sync::mpsc::UnboundedSender;

use super::os::OsError;
use super::session::FileSession;
use super::{FileShared, acquire, finish};

/// The connection used by the library: one session at a time, and a new one after a loss.
pub(super) struct FileConn {
    shared: Arc<FileShared>,
    lock_delay: Duration,
    label: Box<str>,
    pushes: UnboundedSender<Push>,
    live: Arc<Mutex<Option<Arc<FileSession>>>>,
}

impl FileConn {
    pub(super) fn new(
        shared: Arc<FileShared>,
        spec: Spec,
        label: &str,
        pushes: UnboundedSender<Push>,
    ) -> Self {
        let end = (0..=limits::LABEL_BYTES_MAX.min(label.len())).rev().find(|&at| label.is_char_boundary(at));
        let label = label[..end.unwrap_or(0)].into();
        Self { shared, lock_delay: spec.lock_delay, label, pushes, live: Arc::default() }
    }

    fn live(&self) -> Option<Arc<FileSession>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(|session| !session.is_gone())
    }

    fn open(&self, fresh: bool) -> Result<Answer, CallError> {
        if !fresh && self.live().is_some() {
            return Ok(Answer::Opened);
        }
        let (lock_delay, label, pushes) = (self.lock_delay, self.label.clone(), self.pushes.clone());
        match self.shared.store().and_then(|store| FileSession::open(store, lock_delay, label, pushes)) {
            Ok(session) => {
                *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
                Ok(Answer::Opened)
            }
            Err(OsError::Stuck(_) | OsError::Gone) => Err(CallError::NOT_SENT),
            Err(OsError::Error(error)) => Ok(Answer::Refused(error)),
        }
    }
}

impl Conn for FileConn {
    fn submit(&self, call: Call, responder: Responder) {
        let session = match call {
            Call::Open { fresh } => return responder.send(self.open(fresh)),
            _ => self.live(),
        };
        let Some(session) = session else { return responder.send(Ok(Answer::SessionGone)) };
        match call {
            Call::Open { .. } | Call::KeepAlive => responder.send(Ok(Answer::KeptAlive)),
            Call::Acquire { seq, done_through, request, .. } => {
                session.take_done_through(done_through);
                match session.register(seq, request) {
                    Ok(request) => responder
                        .send_when(Box::pin(async move { acquire::acquire(&session, &request).await })),
                    Err(end) => responder.send(Ok(Answer::Finished(end))),
                }
            }
            Call::Finish { seq, target, done_through } => {
                session.take_done_through(done_through);
                // From here on no step of the request acquires anything, whether or not the acquire's future
                // is still polled.
                match session.finishing(seq, target) {
                    Ok(request) => responder
                        .send_when(Box::pin(async move { finish::finish(&session, &request, seq).await })),
                    Err(end) => responder.send(Ok(Answer::Finished(end))),
                }
            }
            // Refused before: the capability is missing.
            Call::Change { .. } => responder.send(Err(CallError::NOT_SENT)),
            Call::Close => {
                let live = Arc::clone(&self.live);
                responder.send_when(Box::pin(async move {
                    finish::close(&session).await;
                    live.lock().unwrap_or_else(PoisonError::into_inner).take();
                    Ok(Answer::Closed)
                }));
            }
        }
    }

    fn descriptors(&self, seq: Seq) -> Vec<RawFd> {
        self.live().map(|session| session.descriptors(seq)).unwrap_or_default()
    }
}
