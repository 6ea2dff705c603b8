//! Unary calls of tools and operators, to any node that answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::{Code, Response, Status, Streaming};

use super::addresses::{Address, Addresses};
use super::credentials::Credentials;
use super::driver::{GrpcClient, random};
use super::failures::{self, LEADER_METADATA, NODE_LIMIT, NodeFailure, Why, cause};
use super::search::Search;
use super::shared::ServiceShared;

/// How long a call is retried, over all nodes in turn. Longer than a change of leader takes.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Longest pause between rounds over all nodes.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Number of answers buffered for the reader of a watch or a backup.
const WATCH_BUFFER: usize = 64;

/// Whether a call may be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repeat {
    /// Retried until the time limit: a repetition changes nothing.
    Again,
    /// Sent to one node at most: a call that has reached a node is never repeated.
    Once,
}

/// Sends unary calls on the library's thread, so that connections outlive the caller's runtime.
#[derive(Clone)]
pub(super) struct Asker {
    lease_thread: LeaseThread,
    /// Used for its addresses only.
    shared: Arc<ServiceShared>,
    /// The connection that answered last.
    good: Arc<Mutex<Option<(Address, GrpcClient)>>>,
}

impl Asker {
    pub(super) fn new(lease_thread: LeaseThread, shared: Arc<ServiceShared>) -> Self {
        Self { lease_thread, shared, good: Arc::default() }
    }

    /// The addresses of the service.
    pub(super) fn addresses(&self) -> Addresses {
        self.shared.addresses().anew()
    }

    pub(super) fn credentials(&self) -> Credentials {
        self.shared.credentials.clone()
    }

    /// Runs `work` on the library's thread.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, BackendError>> {
        let (answer, answered) = oneshot::channel();
        self.lease_thread.run(Box::pin(async move {
            // The caller may have been dropped.
            let _ = answer.send(work.await);
        }));
        Box::pin(async move { answered.await.map_err(|_| stopped()) })
    }

    fn good(&self) -> MutexGuard<'_, Option<(Address, GrpcClient)>> {
        self.good.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls nodes until one answers; with [`Repeat::Once`] one node at most.
    pub(super) fn ask<T, F>(
        &self,
        asking: Repeat,
        question: impl Fn(GrpcClient) -> F + Send + Sync + 'static,
    ) -> BoxFuture<'static, Result<T, BackendError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let asker = self.clone();
        let found = self.run(async move { find(&asker, asking, question).await.map(Response::into_inner) });
        Box::pin(async move { found.await? })
    }

    /// Opens a stream of answers and forwards them until the service ends it or an error occurs.
    pub(super) fn follow<T, F>(
        &self,
        question: impl Fn(GrpcClient) -> F + Send + Sync + 'static,
    ) -> mpsc::Receiver<Result<T, BackendError>>
    where
        T: Send + 'static,
        F: Future<Output = Result<Response<Streaming<T>>, Status>> + Send,
    {
        let (answers, receiver) = mpsc::channel(WATCH_BUFFER);
        let asker = self.clone();
        self.lease_thread.run(Box::pin(async move {
            let stream = match find(&asker, Repeat::Again, question).await {
                Ok(stream) => stream,
                Err(error) => return drop(answers.send(Err(error)).await),
            };
            let mut stream = stream.into_inner();
            loop {
                let item = tokio::select! {
                    item = stream.message() => item,
                    () = answers.closed() => return,
                };
                let item = match item {
                    Ok(Some(item)) => Ok(item),
                    Ok(None) => return,
                    // A node that dies in the middle of a message leaves this code without a source.
                    Err(status) if status.code() == Code::Internal => {
                        Err(BackendError::new(BackendErrorKind::Unreachable, cause(&status)))
                    }
                    Err(status) => Err(refusal(&status)),
                };
                let over = item.is_err();
                if answers.send(item).await.is_err() || over {
                    return;
                }
            }
        }));
        receiver
    }
}

async fn find<T, F>(
    asker: &Asker,
    asking: Repeat,
    question: impl Fn(GrpcClient) -> F,
) -> Result<Response<T>, BackendError>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let mut search = Search::among(asker.addresses(), asker.credentials());
    let limit = Instant::now() + ASK_LIMIT;
    let rounds_max = if asking == Repeat::Again { usize::MAX } else { 1 };
    for _round in 0..rounds_max {
        search.begin_round();
        // The connection that answered last, then any nodes that answer.
        let mut at_hand = asker.good().take();
        loop {
            let (address, client) = match at_hand.take() {
                Some(at_hand) => at_hand,
                None => match search.next().await {
                    Some(found) => found,
                    None => break,
                },
            };
            let whose = address.to_string();
            match tokio::time::timeout(NODE_LIMIT, question(client.clone())).await {
                Ok(Ok(answer)) => {
                    *asker.good() = Some((address, client));
                    return Ok(answer);
                }
                Ok(Err(status)) if !is_nobodys(&status) => {
                    *asker.good() = Some((address, client));
                    return Err(refusal(&status));
                }
                Ok(Err(status)) => {
                    let leader = status.metadata().get(LEADER_METADATA).and_then(|it| it.to_str().ok());
                    search.addresses.leader_is(leader, 0);
                    search.failures.push(NodeFailure { node: whose, why: Why::of(&status) });
                }
                Err(_) => {
                    search.failures.push(NodeFailure { node: whose, why: Why::no_answer(NODE_LIMIT) });
                }
            }
            search.addresses.failed();
            if asking == Repeat::Once {
                return Err(unreachable(&search.failures, "; whether it was done is not known"));
            }
        }
        let pause = search.addresses.pause(PAUSE_MAX, random());
        if Instant::now() + pause >= limit {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    Err(unreachable(&search.failures, ""))
}

/// Requests the status of nodes until one answers, to check that the service exists. The stream begins at
/// that node.
pub(super) async fn probe(asker: &Asker) -> Result<(), BackendError> {
    let probing = asker.clone();
    let found = asker.run(async move {
        let asker = probing;
        let mut search = Search::among(asker.addresses(), asker.credentials());
        match search.next().await {
            Some((address, client)) => {
                *asker.good() = Some((address.clone(), client));
                asker.shared.addresses().begin_at(address);
                Ok(())
            }
            None => Err(unreachable(&search.failures, "")),
        }
    });
    found.await?
}

fn unreachable(failures: &[NodeFailure], doubt: &str) -> BackendError {
    if let Some(denial) = failures.iter().find(|failure| matches!(failure.why, Why::Denies(_))) {
        return BackendError::new(BackendErrorKind::Denied, denial.to_string());
    }
    let what = failures::summary_with_remedy(failures);
    BackendError::new(BackendErrorKind::Unreachable, format!("{what}{doubt}"))
}

fn stopped() -> BackendError {
    BackendError::new(BackendErrorKind::Unreachable, "the client's thread has ended; connect again")
}

/// Whether another node, or the same one after a while, may answer the call.
fn is_nobodys(status: &Status) -> bool {
    // Only the local transport attaches a source. The code alone is not enough: the transport reports an
    // HTTP/2 stream that broke with its node as `Internal`, the code of a node's own errors.
    let is_of_transport = std::error::Error::source(status).is_some();
    is_of_transport
        || matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Aborted
        )
}

/// Converts a node's refusal.
fn refusal(status: &Status) -> BackendError {
    let kind = match status.code() {
        _ if is_nobodys(status) => BackendErrorKind::Unreachable,
        Code::Unimplemented => BackendErrorKind::Unsupported,
        Code::PermissionDenied | Code::Unauthenticated => BackendErrorKind::Denied,
        Code::ResourceExhausted => BackendErrorKind::LimitReached,
        Code::Internal | Code::DataLoss => BackendErrorKind::Operator,
        _ => BackendErrorKind::Refused,
    };
    let text = if status.message().is_empty() { status.code().description() } else { status.message() };
    BackendError::new(kind, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `watch` command reconnects after a transport error, and ends after a node's internal error.
    #[test]
    fn an_error_of_the_transport_is_told_from_an_internal_error_of_a_node() {
        let mut of_transport = Status::internal("h2 protocol error");
        of_transport.set_source(Arc::new(std::io::Error::other("reset")));
        assert_eq!(refusal(&of_transport).kind, BackendErrorKind::Unreachable);
        assert_eq!(refusal(&Status::internal("a bug")).kind, BackendErrorKind::Operator);
    }
}
