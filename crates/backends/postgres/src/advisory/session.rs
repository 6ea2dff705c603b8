//! One session of the library: maps its calls to requests.

use std::sync::Arc;

use lockkeeper_backend::{AcquireRequest, Answer, Call, CallError, Conn, Push, Responder};
use lockkeeper_core::{End, Seq};
use tokio::sync::mpsc::UnboundedSender;

use super::acquire::{Unanswered, acquire};
use super::hold::{finish, verify};
use super::request::{AdvisoryRequest, AdvisoryRequests};
use super::shared::Shared;

pub(super) struct AdvisoryConn {
    shared: Arc<Shared>,
    label: Arc<str>,
    pushes: UnboundedSender<Push>,
    requests: Arc<AdvisoryRequests>,
}

impl AdvisoryConn {
    pub(super) fn new(shared: Arc<Shared>, label: &str, pushes: UnboundedSender<Push>) -> Self {
        Self { shared, label: label.into(), pushes, requests: Arc::default() }
    }

    fn acquire(&self, seq: Seq, asked: Arc<AcquireRequest>, responder: Responder) {
        let shared = self.shared.clone();
        let mut requests = self.requests.by_seq();
        // If the acquire of a request has failed, its retry is a new request (P7): what the failed one may
        // have left at the server is being terminated.
        if let Some(request) = requests.get(&seq).filter(|request| !request.failed()).cloned() {
            drop(requests);
            return match request.was_granted() {
                true => responder.send_when(Box::pin(async move { verify(&shared, &request).await })),
                false => responder.send_when(Box::pin(async move { request.answered().await })),
            };
        }
        let (label, pushes) = (self.label.clone(), self.pushes.clone());
        let request = Arc::new(AdvisoryRequest::new(seq, asked, label, pushes, self.requests.clone()));
        requests.insert(seq, request.clone());
        drop(requests);
        responder.send_when(Box::pin(acquire(shared, Unanswered(request))));
    }
}

impl Conn for AdvisoryConn {
    fn submit(&self, call: Call, responder: Responder) {
        match call {
            // There is nothing to open or to renew: connections are opened on demand, and a hold ends with
            // its connection.
            Call::Open { .. } => responder.send(Ok(Answer::Opened)),
            Call::KeepAlive => responder.send(Ok(Answer::KeptAlive)),
            Call::Acquire { seq, request, .. } => self.acquire(seq, request, responder),
            Call::Finish { target, .. } => {
                let Some(request) = self.requests.by_seq().get(&target).cloned() else {
                    return responder.send(Ok(Answer::Finished(End::Gone)));
                };
                request.over.cancel();
                let (shared, requests) = (self.shared.clone(), self.requests.clone());
                responder.send_when(Box::pin(async move {
                    let end = finish(shared, request.clone()).await?;
                    requests.remove(&request);
                    Ok(Answer::Finished(end))
                }));
            }
            // Refused before: the capability is missing.
            Call::Change { .. } => responder.send(Err(CallError::NOT_SENT)),
            Call::Close => {
                let left = self.requests.all();
                left.iter().for_each(|request| request.over.cancel());
                let shared = self.shared.clone();
                responder.send_when(Box::pin(async move {
                    for request in left {
                        // If the outcome is unknown, the server process is being terminated in the
                        // background.
                        let _ = finish(shared.clone(), request).await;
                    }
                    Ok(Answer::Closed)
                }));
            }
        }
    }

    fn trouble(&self) -> Option<String> {
        self.shared.pool.trouble().map(|error| error.to_string())
    }
}

impl Drop for AdvisoryConn {
    fn drop(&mut self) {
        for request in std::mem::take(&mut *self.requests.by_seq()).into_values() {
            let shared = self.shared.clone();
            self.shared.queries.lease_thread().run(Box::pin(async move {
                let _ = finish(shared, request).await;
            }));
        }
    }
}
