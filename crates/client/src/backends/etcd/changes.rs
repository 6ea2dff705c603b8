//! Messages about the keys of all locks, for watches.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::mpsc::unbounded_channel;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::api::watch_request::RequestUnion;
use super::api::{WatchCreateRequest, WatchRequest, WatchResponse};
use super::store::Inner;
use crate::backends::changes::ChangedLocks;
use crate::error::{BackendError, BackendErrorKind};

/// Begins to follow the changes of all locks' keys. The future that it returns ends with the stream of messages.
pub(super) async fn follow(
    inner: Arc<Inner>,
    changed: ChangedLocks,
) -> Result<impl Future<Output = ()> + Send, BackendError> {
    let (requests, receiver) = unbounded_channel();
    let (key, range_end) = inner.layout.all();
    let create = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
    // The receiver exists.
    let _ = requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) });
    let refused = |status: Status| {
        let what = format!("etcd refuses the watch: {}", status.message());
        BackendError::new(BackendErrorKind::Unreachable, what)
    };
    let connection = inner.link.connection().await;
    let request = connection.request(UnboundedReceiverStream::new(receiver));
    let mut messages = connection.watch().watch(request).await.map_err(refused)?.into_inner();
    while !messages.message().await.map_err(refused)?.is_none_or(|message| message.created) {}
    Ok(async move {
        // The watch lasts as long as its sending side.
        let _requests = requests;
        while let Some(message) = next(&mut messages).await {
            for key in message.events.into_iter().filter_map(|event| event.kv) {
                inner.layout.name_of(&key.key).into_iter().for_each(|name| changed.add(name));
            }
        }
    })
}

/// The next message, unless the watch has ended.
async fn next(messages: &mut Streaming<WatchResponse>) -> Option<WatchResponse> {
    messages.message().await.ok().flatten().filter(|message| !message.canceled)
}
