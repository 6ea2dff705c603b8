//! The search for all locks that are held or waited for; and `doctor`'s, for locks with the nodes of two
//! client libraries.

use std::collections::VecDeque;

use lockkeeper_backend::{BackendError, BackendErrorKind, Finding};
use lockkeeper_core::LockName;
use tokio::time::Instant;
use zookeeper_client::{Client, MultiReadResult};

use super::inspect::{Inspector, LIMIT, READS};
use super::layout::{Contender, NodeLayout};
use super::session::{ZooKeeperFailure, by, failure};
use super::store::children;

/// Largest number of nodes that a search reads.
const NODES_MAX: usize = 100_000;
/// How many locks a finding names.
const NAMED: usize = 5;

/// A lock with contenders: its name, its node, and the names of their nodes.
pub(super) type UsedLock = (LockName, String, Vec<String>);

/// Reads the nodes below the root, some at a time.
pub(super) struct LockSearch<'a> {
    client: &'a Client,
    layout: &'a NodeLayout,
    folders: VecDeque<String>,
    count: usize,
}

impl<'a> LockSearch<'a> {
    pub(super) async fn begin(client: &'a Client, layout: &'a NodeLayout) -> Result<Self, ZooKeeperFailure> {
        let root = layout.root();
        let folders = below(root, &children(client, root, Instant::now() + LIMIT).await?).collect();
        Ok(Self { client, layout, folders, count: 0 })
    }

    /// The locks with contenders among the next nodes, possibly none; `None` at the end. Refused if there are
    /// too many nodes.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<UsedLock>>, ZooKeeperFailure> {
        if self.folders.is_empty() {
            return Ok(None);
        }
        let some: Vec<String> = self.folders.drain(..self.folders.len().min(READS)).collect();
        self.count += some.len();
        let mut reader = self.client.new_multi_reader();
        for folder in &some {
            reader.add_get_children(folder).map_err(failure)?;
        }
        let read = by(Instant::now() + LIMIT, reader.commit()).await?;
        let mut used = Vec::new();
        for (folder, read) in some.into_iter().zip(read) {
            let MultiReadResult::Children { children } = read else { continue };
            self.count += children.len();
            if self.count > NODES_MAX {
                return Err(too_many());
            }
            let (contenders, others): (Vec<_>, Vec<_>) =
                children.into_iter().partition(|child| Contender::parse(child).is_some());
            if self.layout.is_nested() {
                self.folders.extend(below(&folder, &others));
            }
            let Some(name) = self.layout.name_of(&folder) else { continue };
            if !contenders.is_empty() {
                used.push((name, folder, contenders));
            }
        }
        Ok(Some(used))
    }
}

impl Inspector {
    /// For `doctor`: the locks that have nodes with Curator's names and with kazoo's at this moment.
    pub(super) async fn mixed_locks(&self) -> Result<Option<Finding>, BackendError> {
        match self.find_mixed_locks().await {
            Ok(mixed) if mixed.is_empty() => Ok(None),
            Ok(mixed) => Ok(Some(Finding { spoils: true, says: warning(&mixed) })),
            Err(ZooKeeperFailure::Refused(error)) => {
                let says = format!("no search for locks of Curator's clients and kazoo's at once: {error}");
                Ok(Some(Finding { spoils: false, says }))
            }
            Err(failure) => Err(self.explained(failure)),
        }
    }

    async fn find_mixed_locks(&self) -> Result<Vec<LockName>, ZooKeeperFailure> {
        let client = self.sessions.client(Instant::now() + LIMIT).await?;
        let mut mixed = Vec::new();
        let mut search = LockSearch::begin(&client, &self.layout).await?;
        while let Some(used) = search.next().await? {
            mixed.extend(used.into_iter().filter(is_mixed).map(|(name, ..)| name));
        }
        Ok(mixed)
    }
}

fn is_mixed((_, _, contenders): &UsedLock) -> bool {
    let mut libraries = contenders.iter().filter_map(|node| Some(Contender::parse(node)?.library));
    let first = libraries.next();
    libraries.any(|other| Some(other) != first)
}

fn warning(mixed: &[LockName]) -> String {
    let named: Vec<String> = mixed.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    let more = match mixed.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{}{more}: nodes with the names of Curator's locks beside nodes with those of kazoo's. Our requests wait for both, but a \
         client of Curator or kazoo only for its own kind, so that two may hold at once. For locks that kazoo's clients take, \
         use `recipe=kazoo` in all URLs; no client of Curator may take them",
        named.join(", ")
    )
}

fn too_many() -> ZooKeeperFailure {
    let what =
        format!("there are more than {NODES_MAX} nodes to look at; look at one lock, or below a longer path");
    ZooKeeperFailure::Refused(BackendError::new(BackendErrorKind::Refused, what))
}

fn below<'a>(folder: &'a str, children: &'a [String]) -> impl Iterator<Item = String> + 'a {
    let folder = folder.trim_end_matches('/');
    // ZooKeeper's own nodes.
    let own = move |child: &&String| !(folder.is_empty() && *child == "zookeeper");
    children.iter().filter(own).map(move |child| format!("{folder}/{child}"))
}
