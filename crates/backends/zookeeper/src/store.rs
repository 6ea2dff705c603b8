//! Lease-store entries as ephemeral nodes: renewals and ends.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::leased::{
    Attempt, Entry, EntryId, Note, Renewed, Store, Tried, Wake, Wakes, is_revoked,
};
use lockkeeper_backend::{BoxFuture, CallError};
use lockkeeper_core::End;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use zookeeper_client::{Client, Error, EventType, MultiWriteError};

use super::entry_nodes::{EntryNode, EntryNodes, Node};
use super::layout::NodeLayout;
use super::session::{CurrentSession, ZooKeeperFailure, by, by_if_exists, failure};

/// Nodes checked by one renewal request: well below the servers' limit of 1 MiB per request.
const CHECKS_MAX: usize = 500;
/// Tries of a write that conflicts with other writes of the node.
const WRITES_MAX: usize = 5;
/// Age from which a hold's node is watched: most holds end earlier and need no watch.
const SETTLED: Duration = Duration::from_millis(100);
/// Time limit for one try to delete what an attempt has left, and the time between two of them.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);
const SWEEP_AGAIN: Duration = Duration::from_millis(500);
/// Longest data of another client's node that are shown as its owner.
const OWNER_MAX: usize = 200;
/// What Curator's `Revoker` writes into the node of a holder, to ask for its lock.
const CURATORS_REVOCATION: &[u8] = b"__REVOKE__";

/// The entries of one session of this library, which has a ZooKeeper session of its own.
pub(super) struct ZooKeeperStore {
    pub(super) sessions: Arc<CurrentSession>,
    pub(super) layout: NodeLayout,
    pub(super) entry_nodes: Arc<EntryNodes>,
    pub(super) wakes: Wakes,
}

impl Store for ZooKeeperStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move { self.try_hold(&attempt).await.or_else(ZooKeeperFailure::of_attempt) })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move {
            let limit = entries.iter().map(|entry| entry.limit()).min().unwrap_or_default();
            let Some(client) = self.sessions.current().await else {
                return Ok(vec![Renewed::Gone; entries.len()]);
            };
            let mut renewed = Vec::with_capacity(entries.len());
            for entries in entries.chunks(CHECKS_MAX) {
                let some = self.renew_some(&client, entries, Instant::now() + limit).await;
                renewed.append(&mut some.map_err(ZooKeeperFailure::of_repeated)?);
            }
            Ok(renewed)
        })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.end(&entry, doubt).await.map_err(ZooKeeperFailure::of_repeated) })
    }

    fn set_value(&self, entry: Arc<Entry>, value: Arc<[u8]>) -> BoxFuture<'_, Result<Renewed, CallError>> {
        Box::pin(async move { self.write_value(&entry, &value).await.map_err(ZooKeeperFailure::of_repeated) })
    }

    fn trouble(&self) -> Option<String> {
        self.sessions.trouble().map(|error| error.to_string())
    }
}

impl ZooKeeperStore {
    /// Deletes in the background the node that an attempt has created, or may still create. Without this, the
    /// node would last as long as the session.
    pub(super) fn sweep(&self, client: Client, entry: &Entry, guid: String) {
        let folder = self.layout.folder(&entry.name);
        let Some(sweeping) = self.entry_nodes.begin_sweep(&guid) else { return };
        self.sessions.run(async move {
            let _until_done = sweeping;
            while !client.state().is_terminated() {
                match sweep(&client, &folder, &guid, Instant::now() + SWEEP_LIMIT).await {
                    Ok(()) => return,
                    Err(_) => sleep(SWEEP_AGAIN).await,
                }
            }
        });
    }

    /// Renews the session by a request that needs a majority, since a partitioned server still answers reads
    /// and pings for a while. The request checks that all nodes exist unchanged, and changes nothing.
    async fn renew_some(
        &self,
        client: &Client,
        entries: &[Arc<Entry>],
        deadline: Instant,
    ) -> Result<Vec<Renewed>, ZooKeeperFailure> {
        let nodes: Vec<Option<Node>> =
            entries.iter().map(|entry| self.entry_nodes.node(&entry.id, client.session_id())).collect();
        let mut writer = client.new_multi_writer();
        for node in nodes.iter().flatten() {
            writer.add_check_version(&node.path, node.version).map_err(failure)?;
        }
        let committed = async { Ok(writer.commit().await) };
        match by(deadline, committed).await? {
            Ok(_) => {
                return Ok(nodes
                    .iter()
                    .map(|node| if node.is_some() { Renewed::Kept } else { Renewed::Gone })
                    .collect());
            }
            Err(MultiWriteError::OperationFailed { source: Error::NoNode | Error::BadVersion, .. }) => {}
            Err(error) => return Err(failure(error.into())),
        }
        // One of them was deleted or changed. Reads on this session come after the request above.
        let mut renewed = Vec::with_capacity(nodes.len());
        for (entry, node) in entries.iter().zip(nodes) {
            let Some(node) = node else {
                renewed.push(Renewed::Gone);
                continue;
            };
            let found = by_if_exists(deadline, client.get_data(&node.path)).await?;
            renewed.push(match found {
                None => {
                    self.entry_nodes.end_wait(&entry.id);
                    Renewed::Gone
                }
                Some((data, _)) if is_broken(&data) => Renewed::Revoked,
                Some((_, stat)) => {
                    let _ = self.entry_nodes.set(&entry.id, Node { version: stat.version, ..node });
                    Renewed::Kept
                }
            });
        }
        Ok(renewed)
    }

    async fn write_value(&self, entry: &Entry, value: &[u8]) -> Result<Renewed, ZooKeeperFailure> {
        let deadline = Instant::now() + entry.limit();
        let Some(client) = self.sessions.current().await else { return Ok(Renewed::Gone) };
        for _ in 0..WRITES_MAX {
            let Some(node) = self.entry_nodes.node(&entry.id, client.session_id()) else {
                return Ok(Renewed::Gone);
            };
            let found = by_if_exists(deadline, client.get_data(&node.path)).await?;
            let Some((data, stat)) = found else { return Ok(Renewed::Gone) };
            if is_broken(&data) {
                return Ok(Renewed::Revoked);
            }
            let note = Note::read(&data).unwrap_or_default().with_value(value).bytes();
            match by(deadline, client.set_data(&node.path, &note, Some(stat.version))).await {
                Ok(stat) => {
                    let _ = self.entry_nodes.set(&entry.id, Node { version: stat.version, ..node });
                    return Ok(Renewed::Kept);
                }
                Err(ZooKeeperFailure::Answered(Error::BadVersion | Error::NoNode)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Err(ZooKeeperFailure::IN_DOUBT)
    }

    async fn end(&self, entry: &Entry, doubt: bool) -> Result<End, ZooKeeperFailure> {
        // Removed first, so that an attempt that is under way sweeps the node that it creates.
        let Some(entry_node) = self.entry_nodes.end(&entry.id, doubt) else { return Ok(End::Gone) };
        // The nodes of another session are gone, or expire with it.
        let Some(client) =
            self.sessions.current().await.filter(|client| client.session_id() == entry_node.session)
        else {
            return Ok(End::Gone);
        };
        let ended = self.delete(&client, entry, &entry_node, doubt).await;
        if ended.is_err() {
            self.sweep(client, entry, entry_node.guid.clone());
            self.entry_nodes.put_back(&entry.id, entry_node);
        }
        ended
    }

    async fn delete(
        &self,
        client: &Client,
        entry: &Entry,
        entry_node: &EntryNode,
        doubt: bool,
    ) -> Result<End, ZooKeeperFailure> {
        let deadline = Instant::now() + entry.limit();
        let node = match entry_node.node.clone().filter(|_| !doubt) {
            Some(node) => Some(node),
            None => find(client, &self.layout.folder(&entry.name), &entry_node.guid, deadline).await?,
        };
        let Some(node) = node else { return Ok(End::Gone) };
        let was_held = if entry_node.holds { End::Released } else { End::Left };
        match by_if_exists(deadline, client.delete(&node.path, Some(node.version))).await {
            Ok(Some(())) => Ok(was_held),
            Ok(None) => Ok(End::Gone),
            Err(ZooKeeperFailure::Answered(Error::BadVersion)) => {
                let data = by_if_exists(deadline, client.get_data(&node.path)).await?;
                Ok(match by_if_exists(deadline, client.delete(&node.path, None)).await? {
                    Some(()) if data.is_some_and(|(data, _)| is_broken(&data)) => End::Broken,
                    Some(()) => was_held,
                    None => End::Gone,
                })
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Whether a hold's data mark it as broken.
pub(super) fn is_broken(data: &[u8]) -> bool {
    is_revoked(data) || data == CURATORS_REVOCATION
}

/// The children of a lock's node; empty if the node does not exist.
pub(super) async fn children(
    client: &Client,
    folder: &str,
    deadline: Instant,
) -> Result<Vec<String>, ZooKeeperFailure> {
    Ok(by_if_exists(deadline, client.list_children(folder)).await?.unwrap_or_default())
}

/// Finds the node that an attempt without an answer may have created. Syncs first, because the connection may
/// have moved to a server that lags behind. A delayed creation is executed before the sync, or refused
/// because the session has moved.
pub(super) async fn find(
    client: &Client,
    folder: &str,
    guid: &str,
    deadline: Instant,
) -> Result<Option<Node>, ZooKeeperFailure> {
    by_if_exists(deadline, client.sync(folder)).await?;
    for child in children(client, folder, deadline).await?.iter().filter(|child| child.contains(guid)) {
        let path = format!("{folder}/{child}");
        let stat = by_if_exists(deadline, client.check_stat(&path)).await?.flatten();
        // A node of an earlier session is about to be deleted.
        if let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == client.session_id().0) {
            return Ok(Some(Node { path, czxid: stat.czxid, version: stat.version }));
        }
    }
    Ok(None)
}

async fn sweep(client: &Client, folder: &str, guid: &str, deadline: Instant) -> Result<(), ZooKeeperFailure> {
    if let Some(node) = find(client, folder, guid, deadline).await? {
        by_if_exists(deadline, client.delete(&node.path, None)).await?;
    }
    Ok(())
}

/// The owner of a node, for display. Curator stores its address, kazoo what its user chose.
pub(super) fn owner(data: &[u8], session: i64) -> String {
    if let Some(note) = Note::read(data) {
        return note.owner;
    }
    match std::str::from_utf8(data) {
        Ok(text) if (1..=OWNER_MAX).contains(&text.len()) && !text.contains(char::is_control) => {
            format!("another client (`{text}`)")
        }
        _ => format!("another client, session {session:#x}"),
    }
}

/// Observes the node of a hold, to report at once that it was deleted or that its hold was broken.
pub(super) async fn observe(
    client: Client,
    path: String,
    entry: EntryId,
    wakes: Wakes,
    mut cancelled: oneshot::Receiver<()>,
) {
    tokio::select! {
        () = sleep(SETTLED) => {}
        _ = &mut cancelled => return,
    }
    loop {
        let watcher = tokio::select! {
            read = client.get_and_watch_data(&path) => match read {
                Ok((data, _, _)) if is_broken(&data) => return wakes.deliver(&entry, Wake::Revoked),
                Ok((_, _, watcher)) => watcher,
                Err(Error::NoNode) => return wakes.deliver(&entry, Wake::Gone),
                // Renewals report the session's end and any other change.
                Err(_) => return,
            },
            _ = &mut cancelled => return,
        };
        tokio::select! {
            event = watcher.changed() => if event.event_type == EventType::Session {
                return;
            },
            _ = &mut cancelled => return,
        }
    }
}
