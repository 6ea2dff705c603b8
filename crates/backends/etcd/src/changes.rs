//! Notifications about the keys of locks, for `watch`.

use lockkeeper_backend::changes::{ChangedLocks, ReportsChanges};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, LockInfo};
use lockkeeper_core::LockName;
use tokio::sync::mpsc::unbounded_channel;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::api::watch_request::RequestUnion;
use super::api::{WatchCreateRequest, WatchRequest, WatchResponse};
use super::connection::{EtcdFailure, failure};
use super::store::EtcdStore;

impl ReportsChanges for EtcdStore {
    fn follow<'a>(
        &'a self,
        changed: &'a ChangedLocks,
    ) -> BoxFuture<'a, Result<BoxFuture<'a, ()>, BackendError>> {
        Box::pin(follow(self, changed))
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move { self.lock_infos(prefix.as_ref()).await })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(self.lock_info(name))
    }
}

/// Begins to follow the changes of the keys of the watched locks. The inner future ends with the stream of
/// messages.
async fn follow<'a>(
    store: &'a EtcdStore,
    changed: &'a ChangedLocks,
) -> Result<BoxFuture<'a, ()>, BackendError> {
    let (requests, receiver) = unbounded_channel();
    let (key, range_end) = store.layout.below(changed.prefix());
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
    let connection = store.link.connection().await;
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
        // Another member may accept the watch.
        connection.discard();
        refused(&status)
    })?;
    Ok(Box::pin(async move {
        // The watch lasts as long as its sending side.
        let _requests = requests;
        while let Some(message) = next(&mut messages).await {
            for key in message.events.into_iter().filter_map(|event| event.kv) {
                store.layout.name_of(&key.key).into_iter().for_each(|name| changed.add(name));
            }
        }
        // Perhaps the member has no leader: the next watch begins at another one.
        connection.discard();
    }))
}

/// The next message, unless the watch has ended.
async fn next(messages: &mut Streaming<WatchResponse>) -> Option<WatchResponse> {
    messages.message().await.ok().flatten().filter(|message| !message.canceled)
}
