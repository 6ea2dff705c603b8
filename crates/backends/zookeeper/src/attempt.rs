//! Attempts to acquire: create a node in the lock's queue, and decide by the nodes ahead of it.

use std::time::Duration;

use futures_util::future::{join_all, select_all};
use lockkeeper_backend::leased::{
    Attempt, Entry, Note, NotePermit, PermitTurn, SLOT_PAUSE, Tried, Wake, broken_at_grant, other_limit,
    permit_turn, waiters_ahead,
};
use lockkeeper_backend::{BackendError, BackendErrorKind, Busy};
use lockkeeper_core::{Mode, ModeKind, Token};
use tokio::time::{Instant, sleep};
use zookeeper_client::{Client, CreateMode, Error};

use super::entry_nodes::{Node, RestingWait};
use super::inspect::{SeenNode, read};
use super::layout::Contender;
use super::session::{ZooKeeperFailure, by, by_if_exists};
use super::store::{ZooKeeperStore, children, find, is_broken, observe, owner};

/// Poll interval of a waiter without watch events.
const AGAIN: Duration = Duration::from_secs(5);
/// How often an attempt reads the queue again because the contender before it has just left.
const QUEUE_READS_MAX: usize = 16;
/// Tries to create a node's parent, which may be removed in between.
const PARENTS_MAX: usize = 8;

/// Whether a contender holds or waits. A contender is a node in a lock's queue.
enum Standing {
    /// Its node does not exist.
    Gone,
    /// It holds, with this permit if it asked for one.
    Holds(Option<NotePermit>),
    Queued(Queued),
    /// Its node was written meanwhile.
    Changed,
}

/// What a contender waits for.
struct Queued {
    /// How many contenders it waits for.
    ahead: usize,
    /// How many of these do not hold.
    waiters_ahead: u64,
    /// A permit is free, but an earlier request has not written its slot yet.
    is_slot: bool,
    /// The nodes to watch: a change or the end of one of them may end the wait.
    awaited: Vec<String>,
    /// The data of the awaited node, if a change of its data may end the wait too.
    data: Option<Vec<u8>>,
    /// The node of the first contender in the queue.
    first: String,
}

impl ZooKeeperStore {
    pub(super) async fn try_hold(&self, attempt: &Attempt) -> Result<Tried, ZooKeeperFailure> {
        let entry = &*attempt.entry;
        let deadline = Instant::now() + entry.limit();
        let client = self.sessions.client(deadline).await?;
        let folder = self.layout.folder(&entry.name);
        let Some((guid, known)) = self.entry_nodes.begin(&entry.id, client.session_id()) else {
            return Err(ZooKeeperFailure::NOT_DONE);
        };
        let mut orphan = SweepOrphan { store: self, client: &client, entry, guid: &guid, is_settled: false };
        let was_known = known.is_some();
        let node = match known {
            Some(node) => node,
            None => {
                let left = match attempt.first {
                    true => None,
                    false => find(&client, &folder, &guid, deadline).await?,
                };
                if left.is_none() && !attempt.wait && entry.mode.kind() != ModeKind::Permit {
                    let children = children(&client, &folder, deadline).await?;
                    let queue = Contender::queue(&children);
                    let is_shared = entry.mode == Mode::Shared;
                    if let Some(first) = queue.iter().find(|one| !(is_shared && one.kind == ModeKind::Shared))
                    {
                        orphan.settle();
                        let first = format!("{folder}/{}", first.node);
                        return Ok(Tried::Busy(busy(&client, &first, queue.len(), deadline).await));
                    }
                }
                match left {
                    Some(left) => left,
                    None => self.create(&client, &folder, &guid, attempt, deadline).await?,
                }
            }
        };
        if !self.entry_nodes.set(&entry.id, node.clone()) {
            // The request was ended meanwhile.
            return Err(ZooKeeperFailure::NOT_DONE);
        }
        let tried = self.decide(&client, &folder, &node, attempt, deadline).await;
        if attempt.first && matches!(tried, Err(ZooKeeperFailure::Refused(_))) {
            // A refused first attempt leaves no node. If the deletion fails, a sweep repeats it.
            let _ = by_if_exists(deadline, client.delete(&node.path, None)).await;
            self.entry_nodes.take(&entry.id);
        }
        // An attempt for a known node has changed nothing. Any other attempt may have created the node.
        let tried =
            tried.map_err(|failure| if was_known { failure.not_done() } else { failure.in_doubt() })?;
        if matches!(tried, Tried::Busy(_)) {
            orphan.settle();
        }
        Ok(tried)
    }

    /// Creates the entry's node, and its parents if need be.
    async fn create(
        &self,
        client: &Client,
        folder: &str,
        guid: &str,
        attempt: &Attempt,
        deadline: Instant,
    ) -> Result<Node, ZooKeeperFailure> {
        let prefix = format!("{folder}/{}", self.layout.node(guid, attempt.entry.mode));
        let permit = self.permit_asked(client, folder, &attempt.entry, deadline).await?;
        let note = Note { permit, ..Note::of(attempt) }.bytes();
        let options = self.sessions.ensemble.options(CreateMode::EphemeralSequential);
        for _ in 0..PARENTS_MAX {
            match by(deadline, client.create(&prefix, &note, &options)).await {
                Ok((stat, sequence)) => {
                    return Ok(Node {
                        path: format!("{prefix}{sequence}"),
                        czxid: stat.czxid,
                        version: stat.version,
                    });
                }
                // Nobody used the lock yet, or ZooKeeper has removed its empty container.
                Err(ZooKeeperFailure::Answered(Error::NoNode)) => {
                    let options = self.sessions.ensemble.options(self.layout.folder_mode());
                    match by(deadline, client.mkdir(folder, &options)).await {
                        Ok(()) | Err(ZooKeeperFailure::Answered(_)) => {}
                        Err(failure) => return Err(failure),
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
        Err(ZooKeeperFailure::NOT_DONE)
    }

    /// Reads the queue and decides: the entry holds, or waits, or is busy and leaves the queue.
    async fn decide(
        &self,
        client: &Client,
        folder: &str,
        node: &Node,
        attempt: &Attempt,
        deadline: Instant,
    ) -> Result<Tried, ZooKeeperFailure> {
        let entry = &attempt.entry;
        if let Some(wait) = self.entry_nodes.wait_of(&entry.id) {
            if is_unchanged(client, &wait, deadline).await? {
                return Ok(Tried::Waits { ahead: wait.ahead, again: AGAIN });
            }
            self.entry_nodes.end_wait(&entry.id);
        }
        for _ in 0..QUEUE_READS_MAX {
            let children = children(client, folder, deadline).await?;
            let entry_node = match entry.mode {
                Mode::Permit { .. } => {
                    self.permit_standing(client, folder, node, entry, &children, deadline).await?
                }
                _ => standing(&children, node),
            };
            let queued = match entry_node {
                Standing::Gone => {
                    // Another client deleted the node: the next attempt creates another.
                    self.entry_nodes.take(&entry.id);
                    return Err(ZooKeeperFailure::NOT_DONE);
                }
                Standing::Holds(permit) => return self.hold(client, node, entry, permit),
                Standing::Changed => continue,
                Standing::Queued(queued) => queued,
            };
            if !attempt.wait && queued.is_slot && Instant::now() + SLOT_PAUSE < deadline {
                sleep(SLOT_PAUSE).await;
                continue;
            }
            if !attempt.wait {
                // Another client's node came first.
                let first = format!("{folder}/{}", queued.first);
                let answer = busy(client, &first, queued.ahead, deadline).await;
                by_if_exists(deadline, client.delete(&node.path, None)).await?;
                return Ok(Tried::Busy(answer));
            }
            if self.watch(client, folder, entry, &queued, deadline).await? {
                return Ok(Tried::Waits { ahead: queued.waiters_ahead, again: AGAIN });
            }
        }
        Err(ZooKeeperFailure::IN_DOUBT)
    }

    fn hold(
        &self,
        client: &Client,
        node: &Node,
        entry: &Entry,
        permit: Option<NotePermit>,
    ) -> Result<Tried, ZooKeeperFailure> {
        let cancelled = self.entry_nodes.hold(&entry.id);
        let (path, id, wakes) = (node.path.clone(), entry.id.clone(), self.wakes.clone());
        self.sessions.run(observe(client.clone(), path, id, wakes, cancelled));
        match u64::try_from(node.czxid).ok().and_then(Token::new) {
            Some(token) => Ok(Tried::granted(token, permit.and_then(NotePermit::grant))),
            None => Err(ZooKeeperFailure::Refused(BackendError::new(
                BackendErrorKind::Operator,
                "ZooKeeper's answer can't be read: it has no transaction id; 3.6 or later is needed",
            ))),
        }
    }

    /// Watches the nodes that an entry waits for. `false`: one of them has changed since the queue was read.
    async fn watch(
        &self,
        client: &Client,
        folder: &str,
        entry: &Entry,
        queued: &Queued,
        deadline: Instant,
    ) -> Result<bool, ZooKeeperFailure> {
        // Watches data, as Curator does: a watch of existence would stay at the server if the node is gone by
        // now.
        let watch = async |node: &String| {
            by_if_exists(deadline, client.get_and_watch_data(&format!("{folder}/{node}"))).await
        };
        let mut changes = Vec::with_capacity(queued.awaited.len());
        let mut awaited = Vec::with_capacity(queued.awaited.len());
        for (node, watched) in queued.awaited.iter().zip(join_all(queued.awaited.iter().map(watch)).await) {
            let Some((data, stat, watcher)) = watched? else { return Ok(false) };
            if queued.data.as_ref().is_some_and(|before| *before != data) {
                return Ok(false);
            }
            awaited.push((format!("{folder}/{node}"), stat.version));
            changes.push(Box::pin(watcher.changed()));
        }
        let cancelled =
            self.entry_nodes.wait(&entry.id, RestingWait { awaited, ahead: queued.waiters_ahead });
        let (id, wakes, entry_nodes) = (entry.id.clone(), self.wakes.clone(), self.entry_nodes.clone());
        self.sessions.run(async move {
            tokio::select! {
                _ = select_all(changes) => {
                    entry_nodes.end_wait(&id);
                    wakes.deliver(&id, Wake::Try(Duration::ZERO));
                }
                _ = cancelled => {}
            }
        });
        Ok(true)
    }

    /// The entry's permit request; `None` in other modes. A request without a number of permits uses the
    /// number in use.
    async fn permit_asked(
        &self,
        client: &Client,
        folder: &str,
        entry: &Entry,
        deadline: Instant,
    ) -> Result<Option<NotePermit>, ZooKeeperFailure> {
        let mut in_use = None;
        if entry.mode == (Mode::Permit { of: None }) {
            let children = children(client, folder, deadline).await?;
            let queue = Contender::queue(&children);
            if let Some(other) = queue.iter().find(|one| one.kind == ModeKind::Permit) {
                let data = client.get_data(&format!("{folder}/{}", other.node));
                let found = by_if_exists(deadline, data).await?;
                in_use = found.and_then(|(data, _)| Note::read(&data)?.permit).map(|permit| permit.of);
            }
        }
        NotePermit::asked(&entry.name, entry.mode, in_use).map_err(ZooKeeperFailure::Refused)
    }

    /// Whether a permit request holds or waits. If it waits for nothing, it takes its slot.
    async fn permit_standing(
        &self,
        client: &Client,
        folder: &str,
        node: &Node,
        entry: &Entry,
        children: &[String],
        deadline: Instant,
    ) -> Result<Standing, ZooKeeperFailure> {
        let queue = Contender::queue(children);
        let own = node.path.rsplit('/').next().unwrap_or_default();
        let Some(at) = queue.iter().position(|one| one.node == own) else { return Ok(Standing::Gone) };
        let Some((data, stat)) = by_if_exists(deadline, client.get_data(&node.path)).await? else {
            return Ok(Standing::Gone);
        };
        if is_broken(&data) {
            return Err(ZooKeeperFailure::Refused(broken_at_grant()));
        }
        let note = Note::read(&data).unwrap_or_default();
        let Some(permit) = note.permit else { return Ok(Standing::Gone) };
        if permit.slot.is_some() {
            return Ok(Standing::Holds(Some(permit)));
        }
        let nearest = queue[..at].iter().rev().take(permit.of as usize);
        let paths: Vec<_> = nearest.map(|one| (format!("{folder}/{}", one.node), one.kind)).collect();
        let seen = read(client, paths.clone(), || deadline).await?;
        if let Some((missing, _)) = paths.iter().find(|(path, _)| !seen.iter().any(|seen| seen.path == *path))
        {
            // The contender has left, so the set of the nearest ones has changed; or this user may not read
            // it, which is an error.
            by_if_exists(deadline, client.get_data(missing)).await?;
            return Ok(Standing::Changed);
        }
        let permit_of =
            |seen: &SeenNode| Note::read(&seen.data)?.permit.filter(|_| seen.kind == ModeKind::Permit);
        let earlier: Vec<Option<NotePermit>> = seen.iter().map(permit_of).collect();
        let node_of = |seen: &SeenNode| seen.path.rsplit('/').next().unwrap_or_default().to_owned();
        let queued = |awaited: &[SeenNode], data: Option<Vec<u8>>| {
            Standing::Queued(Queued {
                ahead: at,
                waiters_ahead: waiters_ahead(queue[..at].iter().map(|one| one.kind), Some(permit)),
                is_slot: false,
                awaited: awaited.iter().map(node_of).collect(),
                data,
                first: queue[0].node.to_owned(),
            })
        };
        Ok(match permit_turn(&earlier, permit.of) {
            PermitTurn::AwaitsSlot { at } => match queued(&seen[at..=at], Some(seen[at].data.clone())) {
                Standing::Queued(queued) => Standing::Queued(Queued { is_slot: true, ..queued }),
                other => other,
            },
            PermitTurn::AwaitsEnd => queued(&seen, None),
            PermitTurn::AwaitsChange { at } => queued(&seen[at..=at], Some(seen[at].data.clone())),
            PermitTurn::Mismatch { have } => {
                return Err(ZooKeeperFailure::Refused(other_limit(&entry.name, have, permit.of)));
            }
            PermitTurn::Takes { slot } => {
                let permit = NotePermit { slot: Some(slot), ..permit };
                let note = Note { permit: Some(permit), ..note }.bytes();
                match by(deadline, client.set_data(&node.path, &note, Some(stat.version))).await {
                    Ok(stat) => {
                        let _ =
                            self.entry_nodes.set(&entry.id, Node { version: stat.version, ..node.clone() });
                        Standing::Holds(Some(permit))
                    }
                    Err(ZooKeeperFailure::Answered(Error::BadVersion | Error::NoNode)) => Standing::Changed,
                    Err(failure) => return Err(failure),
                }
            }
        })
    }
}

/// When dropped, sweeps the node of an attempt whose request was ended while the attempt was under way.
struct SweepOrphan<'a> {
    store: &'a ZooKeeperStore,
    client: &'a Client,
    entry: &'a Entry,
    guid: &'a str,
    is_settled: bool,
}

impl SweepOrphan<'_> {
    /// Disarms it: the attempt has left no node.
    fn settle(&mut self) {
        self.store.entry_nodes.take(&self.entry.id);
        self.is_settled = true;
    }
}

impl Drop for SweepOrphan<'_> {
    fn drop(&mut self) {
        if !self.is_settled && self.store.entry_nodes.guid_of(&self.entry.id).as_deref() != Some(self.guid) {
            self.store.sweep(self.client.clone(), self.entry, self.guid.to_owned());
        }
    }
}

/// Whether an exclusive or shared contender holds or waits.
fn standing(children: &[String], node: &Node) -> Standing {
    let Some(own) = node.path.rsplit('/').next().and_then(Contender::parse) else { return Standing::Gone };
    let queue = Contender::queue(children);
    if !queue.iter().any(|one| one.node == own.node) {
        return Standing::Gone;
    }
    let ahead = queue.iter().filter(|one| own.waits_for(one));
    let count = ahead.clone().count();
    match ahead.clone().next_back() {
        None => Standing::Holds(None),
        Some(last) => Standing::Queued(Queued {
            ahead: count,
            waiters_ahead: waiters_ahead(ahead.map(|one| one.kind), None),
            is_slot: false,
            awaited: vec![last.node.to_owned()],
            data: None,
            first: queue[0].node.to_owned(),
        }),
    }
}

/// Whether the nodes that a waiter waits for are unchanged; its watch may have been lost. With this check an
/// idle waiter reads one node, and not the whole queue.
async fn is_unchanged(
    client: &Client,
    wait: &RestingWait,
    deadline: Instant,
) -> Result<bool, ZooKeeperFailure> {
    let read = async |(path, version): &(String, i32)| {
        let stat = by(deadline, client.check_stat(path)).await?;
        Ok::<bool, ZooKeeperFailure>(stat.is_some_and(|stat| stat.version == *version))
    };
    for unchanged in join_all(wait.awaited.iter().map(read)).await {
        if !unchanged? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn busy(client: &Client, first: &str, count: usize, deadline: Instant) -> Busy {
    let found = by_if_exists(deadline, client.get_data(first)).await;
    let holder = found.ok().flatten().map(|(data, stat)| owner(&data, stat.ephemeral_owner));
    Busy { holder, queued_ahead: count.saturating_sub(1) as u64 }
}
