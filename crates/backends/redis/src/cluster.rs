//! A Redis cluster: each name is stored on one node, which is used like a single server.
//!
//! This module finds the node. It reads the map of slots again whenever a call has no usable reply: a node
//! may be gone, or a slot may have migrated. Callers repeat such calls until the new map is read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{Attempt, Entry, Renewed, Store, Tried, Wake, Wakes};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, CallError, ConnectError, Host};
use lockkeeper_core::{End, LockName};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::settings::{PORT, Settings, Topology};
use super::slots::{Range, SLOTS, slot_of};
use super::store::{RedisStore, Role};
use super::target::Target;

/// Shortest interval between two reads of the map.
const PAUSE: Duration = Duration::from_millis(250);

/// The nodes of a cluster.
pub(super) struct Cluster {
    /// For the task that reads the map in the background.
    itself: Weak<Self>,
    settings: Settings,
    lease_thread: LeaseThread,
    wakes: Wakes,
    client: String,
    seeds: Vec<Host>,
    map: Mutex<Map>,
    /// When [`Self::refresh`] last began to read the map. Locked during that read.
    last_read: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Map {
    /// By address.
    nodes: BTreeMap<String, (Host, Arc<RedisStore>)>,
    /// The last slot of each range → its first slot, and the address of its node.
    slots: BTreeMap<u16, (u16, String)>,
}

impl Map {
    /// The first slot that no reachable node has.
    fn first_gap(&self) -> Option<u16> {
        let mut next = 0;
        for (last, (first, _)) in &self.slots {
            if *first > next {
                break;
            }
            next = last + 1;
        }
        (next < SLOTS).then_some(next)
    }
}

impl Cluster {
    /// Discovers the nodes through the hosts of the URL.
    pub(super) async fn open(
        settings: &Settings,
        seeds: &[Host],
        lease_thread: &LeaseThread,
        wakes: Wakes,
    ) -> Result<Arc<Self>, ConnectError> {
        let client = RedisStore::new_client()?;
        let cluster = Arc::new_cyclic(|itself| Self {
            itself: itself.clone(),
            settings: settings.clone(),
            lease_thread: lease_thread.clone(),
            wakes,
            client,
            seeds: seeds.to_vec(),
            map: Mutex::default(),
            last_read: tokio::sync::Mutex::default(),
        });
        cluster.learn().await?;
        Ok(cluster)
    }

    /// The node of a name.
    pub(super) fn node_of(&self, name: &LockName) -> Result<Arc<RedisStore>, BackendError> {
        let slot = slot_of(&[&*self.settings.prefix, name.as_str()].concat());
        let map = self.map();
        let range = map.slots.range(slot..).next().filter(|(_, (first, _))| *first <= slot);
        let node = range.and_then(|(_, (_, address))| Some(map.nodes.get(address)?.1.clone()));
        drop(map);
        node.ok_or_else(|| {
            self.refresh();
            let what = format!("no node of the cluster that can be reached has the slot of `{name}`");
            BackendError::new(BackendErrorKind::Unreachable, what)
        })
    }

    /// All nodes, if they have all slots together: for reads that claim to be complete.
    pub(super) fn all_nodes(&self) -> Result<Vec<Arc<RedisStore>>, BackendError> {
        let gap = self.map().first_gap();
        match gap {
            None => Ok(self.nodes()),
            Some(slot) => {
                self.refresh();
                let what = format!(
                    "no node of the cluster that can be reached has slot {slot}: locks in it are not seen"
                );
                Err(BackendError::new(BackendErrorKind::Unreachable, what))
            }
        }
    }

    /// All nodes that have slots and could be reached.
    pub(super) fn nodes(&self) -> Vec<Arc<RedisStore>> {
        self.map().nodes.values().map(|(_, node)| node.clone()).collect()
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the map again in the background, at most once per `PAUSE`. Callers repeat a call that was not
    /// executed.
    fn refresh(&self) {
        let Some(cluster) = self.itself.upgrade() else { return };
        self.lease_thread.run(Box::pin(async move {
            let Ok(mut last_read) = cluster.last_read.try_lock() else { return };
            if last_read.is_some_and(|at| at.elapsed() < PAUSE) {
                return;
            }
            *last_read = Some(Instant::now());
            match cluster.learn().await {
                // Waiters at a node that lost the slot receive no more wake-ups from it.
                Ok(changed) if changed => cluster.wakes.deliver_to_all(Wake::Try(Duration::ZERO)),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "the cluster's nodes are not known anew"),
            }
        }));
    }

    /// Reads the map from the first node that answers, and connects to new nodes. Returns whether the map
    /// changed.
    async fn learn(&self) -> Result<bool, ConnectError> {
        let known: Vec<_> = self.map().nodes.values().filter(|(_, node)| node.is_up()).cloned().collect();
        let known = known.into_iter().map(|(host, node)| (host, Some(node)));
        let seeds = self.seeds.iter().map(|seed| (seed.clone(), None));
        let mut errors = Vec::new();
        for (host, node) in known.chain(seeds) {
            match self.learn_from(host, node).await {
                Ok(changed) => return Ok(changed),
                Err(error) => errors.push(error),
            }
        }
        if let [error] = &errors[..] {
            return Err(error.clone());
        }
        let errors: Vec<String> = errors.iter().map(ConnectError::to_string).collect();
        let what = format!("no node of the cluster can be asked: {}", errors.join("; "));
        Err(BackendError::new(BackendErrorKind::Unreachable, what).into())
    }

    async fn learn_from(&self, host: Host, node: Option<Arc<RedisStore>>) -> Result<bool, ConnectError> {
        let node = match node {
            Some(node) => node,
            None => self.connect(&host).await?,
        };
        let ranges = node.slots(&host).await?;
        self.put(ranges, host, node).await
    }

    async fn put(&self, ranges: Vec<Range>, host: Host, node: Arc<RedisStore>) -> Result<bool, ConnectError> {
        if ranges.is_empty() {
            let what = "the server is in no cluster that has slots; leave `?cluster=true` out";
            return Err(BackendError::new(BackendErrorKind::Refused, what).into());
        }
        let mut nodes = self.map().nodes.clone();
        nodes.entry(host.address(PORT)).or_insert((host, node));
        let mut map = Map::default();
        for range in ranges {
            let address = range.primary.address(PORT);
            if !map.nodes.contains_key(&address) {
                match nodes.remove(&address) {
                    Some(node) => drop(map.nodes.insert(address.clone(), node)),
                    None => match self.connect(&range.primary).await {
                        Ok(node) => drop(map.nodes.insert(address.clone(), (range.primary, node))),
                        // The other nodes are usable all the same; this one is tried again when it is needed.
                        Err(error) => {
                            tracing::debug!(%error, "a node of the cluster is out of reach");
                            continue;
                        }
                    },
                }
            }
            map.slots.insert(range.last, (range.first, address));
        }
        if map.nodes.is_empty() {
            let what = "no node that the cluster names can be reached from here";
            return Err(BackendError::new(BackendErrorKind::Unreachable, what).into());
        }
        let mut present = self.map();
        let changed = present.slots != map.slots;
        *present = map;
        Ok(changed)
    }

    async fn connect(&self, host: &Host) -> Result<Arc<RedisStore>, ConnectError> {
        let target = Target::new(self.settings.clone(), Topology::Member(host.clone()));
        let wakes = self.wakes.clone();
        RedisStore::open(Role::ClusterNode, target, &self.lease_thread, wakes, &self.client).await
    }
}

impl Store for Cluster {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move {
            let node = self.node_of(&attempt.entry.name).map_err(CallError::refused)?;
            node.attempt(attempt).await.inspect_err(|_| self.refresh())
        })
    }

    /// Renews the entries of each node together, on all nodes at once.
    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move {
            let (mut parts, mut failed) = (Vec::<(Arc<RedisStore>, Vec<usize>)>::new(), None);
            for (at, entry) in entries.iter().enumerate() {
                let node = match self.node_of(&entry.name) {
                    Ok(node) => node,
                    Err(error) => {
                        failed = Some(CallError::refused(error));
                        continue;
                    }
                };
                match parts.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &node)) {
                    Some((_, indexes)) => indexes.push(at),
                    None => parts.push((node, vec![at])),
                }
            }
            let mut asking = JoinSet::new();
            for (node, indexes) in parts {
                let part = indexes.iter().map(|&at| entries[at].clone()).collect();
                asking.spawn(async move { (indexes, node.renew(part).await) });
            }
            let mut renewed = vec![Renewed::Gone; entries.len()];
            // Waits for all nodes, also if one fails: dropping the set would cancel the other renewals.
            while let Some(answered) = asking.join_next().await {
                match answered {
                    Ok((indexes, Ok(part))) => {
                        indexes.into_iter().zip(part).for_each(|(at, answer)| renewed[at] = answer);
                    }
                    Ok((_, Err(error))) => failed = Some(error),
                    Err(_) => failed = Some(CallError::IN_DOUBT),
                }
            }
            match failed {
                None => Ok(renewed),
                Some(error) => {
                    self.refresh();
                    Err(error)
                }
            }
        })
    }

    /// If the slot has moved, reads the map again and repeats the call, so that a release gets an answer.
    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move {
            let until = Instant::now() + entry.limit();
            loop {
                let ended = match self.node_of(&entry.name) {
                    Ok(node) => node.finish(entry.clone(), doubt).await,
                    Err(error) => Err(CallError::refused(error)),
                };
                match ended {
                    Err(CallError { sent: false, .. }) if Instant::now() + PAUSE < until => {
                        self.refresh();
                        tokio::time::sleep(PAUSE).await;
                    }
                    ended => return ended.inspect_err(|_| self.refresh()),
                }
            }
        })
    }

    fn trouble(&self) -> Option<String> {
        let troubles: Vec<String> = self.nodes().iter().filter_map(|node| node.trouble()).collect();
        (!troubles.is_empty()).then(|| troubles.join("; "))
    }
}
