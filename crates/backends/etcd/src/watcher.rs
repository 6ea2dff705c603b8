//! Watches the keys that this client's waiters wait for, and its wake key, on one stream.
//!
//! A watch begins at the revision of the member at that time. etcd serves watches that begin at an earlier
//! revision (*unsynced* watches) only every 100 ms. The key may have been deleted before the watch began, so
//! its waiter attempts once more as soon as the watch has begun.
//!
//! If a key is written just as the watch begins, the watch is unsynced from the start. So the first waiters
//! of a queue attempt a few more times within those 100 ms ([`EXTRA_ATTEMPTS_MS`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{EntryId, Wake, Wakes};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::api::watch_create_request::FilterType;
use super::api::watch_request::RequestUnion;
use super::api::{WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use super::connection::{Link, LinkConnection};
use super::layout::wake_key;

/// The pause before the stream is opened again.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause after the end of a login: for each login the member hashes the password, which is expensive.
const LOGIN_PAUSE: Duration = Duration::from_secs(2);
/// The pauses between the extra attempts of the first waiters of a queue, in milliseconds. Together longer
/// than the 100 ms after which etcd serves unsynced watches.
const EXTRA_ATTEMPTS_MS: [u64; 5] = [5, 10, 20, 40, 80];
/// The id of the watch of the wake key. Entries have higher ones.
const WAKE_ID: i64 = 1;

/// Sends orders to the task on the lease thread. Dropping it ends the task.
pub(super) struct KeyWatcher(UnboundedSender<Order>);

enum Order {
    /// Replaces the entry's earlier watch. `is_near`: the entry may be next before etcd serves an unsynced
    /// watch.
    Watch {
        entry: EntryId,
        watched: Watched,
        is_near: bool,
    },
    Forget(EntryId),
}

/// The change for which an entry waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Watched {
    key: Vec<u8>,
    /// The first key behind the range; empty: only `key`.
    range_end: Vec<u8>,
    /// Report only deletions.
    ends_only: bool,
}

impl Watched {
    /// The key is deleted.
    pub(super) fn end(key: Vec<u8>) -> Self {
        Self { key, range_end: Vec::new(), ends_only: true }
    }

    /// The key is deleted or written.
    pub(super) fn change(key: Vec<u8>) -> Self {
        Self { key, range_end: Vec::new(), ends_only: false }
    }

    /// Whether it covers this key alone.
    pub(super) fn is_of(&self, key: &[u8]) -> bool {
        self.range_end.is_empty() && self.key == key
    }

    /// A key of the range is deleted.
    pub(super) fn any_end((key, range_end): (Vec<u8>, Vec<u8>)) -> Self {
        Self { key, range_end, ends_only: true }
    }
}

impl KeyWatcher {
    pub(super) fn start(link: Arc<Link>, client: &str, wakes: Wakes, lease_thread: &LeaseThread) -> Self {
        let (orders, received) = unbounded_channel();
        let watches = Watches {
            wakes,
            of_entries: HashMap::new(),
            by_id: HashMap::new(),
            last_id: WAKE_ID,
            stream: None,
        };
        lease_thread.run(Box::pin(watch(link, wake_key(client), received, watches)));
        Self(orders)
    }

    pub(super) fn watch(&self, entry: &EntryId, watched: Watched, is_near: bool) {
        // Fails only if the client is gone.
        let _ = self.0.send(Order::Watch { entry: entry.clone(), watched, is_near });
    }

    pub(super) fn forget(&self, entry: &EntryId) {
        let _ = self.0.send(Order::Forget(entry.clone()));
    }
}

struct Watches {
    wakes: Wakes,
    /// The watch of each waiter.
    of_entries: HashMap<EntryId, EntryWatch>,
    by_id: HashMap<i64, EntryId>,
    last_id: i64,
    /// The sending side of the stream, while there is one.
    stream: Option<UnboundedSender<WatchRequest>>,
}

struct EntryWatch {
    id: i64,
    watched: Watched,
    /// How many of [`EXTRA_ATTEMPTS_MS`] are over.
    extra_attempts: usize,
}

/// A stream, its sending side, and its connection.
type Opened<C> = (Streaming<WatchResponse>, UnboundedSender<WatchRequest>, C);

/// Runs until the client is gone.
async fn watch(
    link: Arc<Link>,
    wake_key: Vec<u8>,
    mut orders: UnboundedReceiver<Order>,
    mut watches: Watches,
) {
    loop {
        let mut pause = PAUSE;
        let opened = tokio::select! {
            opened = open(&link, &wake_key) => opened,
            () = watches.follow_until_gone(&mut orders) => return,
        };
        if let Ok((mut stream, sender, connection)) = opened {
            watches.stream = Some(sender);
            watches.create_all();
            // Events between two streams were missed.
            watches.wakes.deliver_to_all(Wake::Try(Duration::ZERO));
            loop {
                tokio::select! {
                    order = orders.recv() => match order {
                        Some(order) => watches.follow(order),
                        None => return,
                    },
                    answer = stream.message() => match answer {
                        // The watch was refused because the stream's login has expired; later versions of
                        // etcd leave out the watch's id. The next stream logs in again.
                        Ok(Some(answer)) if answer.watch_id < 0 || answer.created && answer.canceled => {
                            connection.discard();
                            pause = LOGIN_PAUSE;
                            break;
                        }
                        Ok(Some(answer)) => watches.heard(answer),
                        _ => break,
                    },
                }
            }
            watches.stream = None;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = watches.follow_until_gone(&mut orders) => return,
        }
    }
}

/// Opens a stream, with the watch of the wake key: etcd answers only once there is a first request.
async fn open(link: &Link, wake_key: &[u8]) -> Result<Opened<LinkConnection>, Status> {
    let (sender, requests) = unbounded_channel();
    // The receiver exists.
    let _ = sender.send(create(WAKE_ID, &Watched::change(wake_key.to_vec())));
    let connection = link.connection().await;
    let request = connection.request_with_leader(UnboundedReceiverStream::new(requests));
    match connection.watch().watch(request).await {
        Ok(stream) => Ok((stream.into_inner(), sender, connection)),
        Err(status) => {
            // Another member may accept the stream.
            connection.discard();
            Err(status)
        }
    }
}

fn create(watch_id: i64, watched: &Watched) -> WatchRequest {
    let Watched { key, range_end, ends_only } = watched.clone();
    let filters = if ends_only { vec![FilterType::Noput.into()] } else { Vec::new() };
    let create = WatchCreateRequest { key, range_end, watch_id, filters, ..WatchCreateRequest::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

impl Watches {
    /// Executes orders while there is no stream, until the client is dropped.
    async fn follow_until_gone(&mut self, orders: &mut UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            self.follow(order);
        }
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Watch { entry, watched, is_near } => {
                if let Some(before) = self.of_entries.get_mut(&entry).filter(|one| one.watched == watched) {
                    if let Some(&pause) = EXTRA_ATTEMPTS_MS.get(before.extra_attempts).filter(|_| is_near) {
                        before.extra_attempts += 1;
                        self.wakes.deliver(&entry, Wake::Try(Duration::from_millis(pause)));
                    }
                    return;
                }
                self.forget(&entry);
                self.last_id += 1;
                let id = self.last_id;
                self.send(create(id, &watched));
                self.by_id.insert(id, entry.clone());
                self.of_entries.insert(entry, EntryWatch { id, watched, extra_attempts: 0 });
            }
            Order::Forget(entry) => self.forget(&entry),
        }
    }

    fn forget(&mut self, entry: &EntryId) {
        if let Some(EntryWatch { id: watch_id, .. }) = self.of_entries.remove(entry) {
            self.by_id.remove(&watch_id);
            let cancel = WatchCancelRequest { watch_id };
            self.send(WatchRequest { request_union: Some(RequestUnion::CancelRequest(cancel)) });
        }
    }

    fn create_all(&self) {
        for EntryWatch { id, watched, .. } in self.of_entries.values() {
            self.send(create(*id, watched));
        }
    }

    fn send(&self, request: WatchRequest) {
        if let Some(stream) = &self.stream {
            // Fails only if the stream has just ended: the next one begins with all watches.
            let _ = stream.send(request);
        }
    }

    fn heard(&mut self, answer: WatchResponse) {
        if answer.watch_id == WAKE_ID {
            for key in answer.events.into_iter().filter_map(|event| event.kv) {
                if let Ok(entry) = String::from_utf8(key.value) {
                    self.wakes.deliver(&EntryId(entry), Wake::Revoked);
                }
            }
            return;
        }
        let Some(entry) = self.by_id.get(&answer.watch_id).cloned() else { return };
        if answer.canceled {
            // For example, the member has compacted the revision at which the watch began. The next attempt
            // creates another watch.
            self.by_id.remove(&answer.watch_id);
            self.of_entries.remove(&entry);
        }
        if answer.created || answer.canceled || !answer.events.is_empty() {
            self.wakes.deliver(&entry, Wake::Try(Duration::ZERO));
        }
    }
}
