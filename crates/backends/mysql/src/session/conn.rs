//! One session of the library: turns its calls into messages to the tasks of its requests.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_backend::{AcquireRequest, Answer, Call, CallError, Conn, Push, Responder};
use lockkeeper_core::{End, Seq};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::SessionShared;
use super::request::{Ask, Request};

pub(super) struct SessionConn {
    shared: Arc<SessionShared>,
    label: Arc<str>,
    pushes: UnboundedSender<Push>,
    requests: Arc<Requests>,
}

/// The tasks of the requests; the sender of one that has ended is closed.
#[derive(Default)]
struct Requests(Mutex<BTreeMap<Seq, UnboundedSender<Ask>>>);

impl Requests {
    fn by_seq(&self) -> MutexGuard<'_, BTreeMap<Seq, UnboundedSender<Ask>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a request.
    async fn finish(&self, target: Seq) -> Result<End, CallError> {
        let Some(task) = self.by_seq().get(&target).cloned() else { return Ok(End::Gone) };
        let (finish, finished) = oneshot::channel();
        // Fails if the task has ended: then there is no answer either.
        let _ = task.send(Ask::Finish(finish));
        drop(task);
        let end = finished.await.unwrap_or(Ok(End::Gone))?;
        self.by_seq().remove(&target);
        Ok(end)
    }
}

impl SessionConn {
    pub(super) fn new(shared: Arc<SessionShared>, label: &str, pushes: UnboundedSender<Push>) -> Self {
        Self { shared, label: label.into(), pushes, requests: Arc::default() }
    }

    fn acquire(&self, seq: Seq, asked: Arc<AcquireRequest>, responder: Responder) {
        let (reply, answer) = oneshot::channel();
        let mut requests = self.requests.by_seq();
        requests.retain(|_, task| !task.is_closed());
        // If the acquire of a request has failed, its task has ended, and its retry is a new request (P7):
        // what the failed one may have left at the server is being ended.
        if let Some(task) = requests.get(&seq) {
            let _ = task.send(Ask::Verify(reply));
            drop(requests);
            let ended = Ok(Answer::Finished(End::Gone));
            return responder.send_when(Box::pin(async move { answer.await.unwrap_or(ended) }));
        }
        let key = match self.shared.key.key(asked.names[0].as_str()) {
            Ok(key) => key,
            Err(error) => return responder.send(Ok(Answer::Refused(error))),
        };
        let (asks_in, asks) = unbounded_channel();
        requests.insert(seq, asks_in);
        drop(requests);
        let request = Request {
            shared: self.shared.clone(),
            seq,
            asked,
            label: self.label.clone(),
            pushes: self.pushes.clone(),
            key,
            connection: AtomicU64::new(0),
        };
        self.shared.lease_thread.run(Box::pin(request.run(reply, asks)));
        responder.send_when(Box::pin(async move { answer.await.unwrap_or(Err(CallError::IN_DOUBT)) }));
    }
}

impl Conn for SessionConn {
    fn submit(&self, call: Call, responder: Responder) {
        match call {
            // There is nothing to open or to renew: a hold ends with its connection.
            Call::Open { .. } => responder.send(Ok(Answer::Opened)),
            Call::KeepAlive => responder.send(Ok(Answer::KeptAlive)),
            Call::Acquire { seq, request, .. } => self.acquire(seq, request, responder),
            Call::Finish { target, .. } => {
                let requests = self.requests.clone();
                responder
                    .send_when(Box::pin(async move { requests.finish(target).await.map(Answer::Finished) }));
            }
            // Refused before: the capability is missing.
            Call::Change { .. } => responder.send(Err(CallError::NOT_SENT)),
            Call::Close => {
                let requests = self.requests.clone();
                responder.send_when(Box::pin(async move {
                    let all: Vec<Seq> = requests.by_seq().keys().copied().collect();
                    for target in all {
                        // If the outcome is unknown, its task sees to it.
                        let _ = requests.finish(target).await;
                    }
                    Ok(Answer::Closed)
                }));
            }
        }
    }

    fn trouble(&self) -> Option<String> {
        self.shared.queries.trouble().map(|error| error.to_string())
    }
}
