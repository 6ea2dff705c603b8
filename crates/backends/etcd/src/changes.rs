//! Messages about the keys of locks, for watches.

use std::future::Future;
use std::sync::Arc;

use lockkeeper_backend::changes::ChangedLocks;
use lockkeeper_backend::{BackendError, BackendErrorKind};
use lockkeeper_core::LockName;
use tokio::sync::mpsc::unbounded_channel;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::api::watch_request::RequestUnion;
use super::api::{WatchCreateRequest, WatchRequest, WatchResponse};
use super::connection::{EtcdFailure, failure};
use super::store::Inner;

/// Begins to follow the changes of the keys of the locks at and below `prefix`. The future that it returns
/// ends with the stream of messages.
pub(super) async fn follow(
    inner: Arc<Inner>,
    prefix: Option<LockName>,
    changed: ChangedLocks,
) -> Result<impl Future<Output = ()> + Send, BackendError> {
    let (requests, receiver) = unbounded_channel();
    let (key, range_end) = inner.layout.below(prefix.as_ref());
    let create = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
    // The receiver exists.
    let _ = requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) });
    let refused = |status: &Status| match failure(status) {
        EtcdFailure::Refused(error) => error,
        _ => {
            let what = format!("etcd does not begin the watch: {}", status.message());
            BackendError::new(BackendErrorKind::Unreachable, what)
        }
    };
    let connection = inner.link.connection().await;
    let request = connection.request_with_leader(UnboundedReceiverStream::new(receiver));
    let begun = async {
        let mut messages = connection.watch().watch(request).await?.into_inner();
        match messages.message().await? {
            Some(first) if first.created && !first.canceled => Ok(messages),
            // The login has ended: the next watch begins with another.
            Some(first) if first.watch_id < 0 => Err(Status::unavailable(first.cancel_reason)),
            Some(first) => Err(Status::failed_precondition(first.cancel_reason)),
            None => Err(Status::unavailable("the stream has ended")),
        }
    };
    let mut messages = begun.await.map_err(|status| {
        // Another member may do.
        connection.discard();
        refused(&status)
    })?;
    Ok(async move {
        // The watch lasts as long as its sending side.
        let _requests = requests;
        while let Some(message) = next(&mut messages).await {
            for key in message.events.into_iter().filter_map(|event| event.kv) {
                inner.layout.name_of(&key.key).into_iter().for_each(|name| changed.add(name));
            }
        }
        // Perhaps the member has no leader: the next watch begins at another one.
        connection.discard();
    })
}

/// The next message, unless the watch has ended.
async fn next(messages: &mut Streaming<WatchResponse>) -> Option<WatchResponse> {
    messages.message().await.ok().flatten().filter(|message| !message.canceled)
}
