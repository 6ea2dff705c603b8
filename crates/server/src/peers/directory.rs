//! This node's hello (its first handshake message) to other nodes, and the members that it knows.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::limits;
use lockkeeper_replica::bootstrap::{self, NodeIdentity};
use lockkeeper_replica::{Change, Members, NODES_MAX, Rejected};
use lockkeeper_wire::peer::{Hello, Lane, Refusal};
use lockkeeper_wire::store::{Founding, Member};
use lockkeeper_wire::v1::ClusterNode;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::handshake::Greeter;
use super::tickets::Tickets;
use crate::data::Addresses;
use crate::tls::NodeTls;

/// A member's view of the cluster. Updated by the replica's thread, read by the front's.
#[derive(Debug)]
pub(crate) struct Directory {
    founding: Founding,
    client_address: String,
    /// The address that other nodes should use for this one.
    peer_address: String,
    election_timeout: Duration,
    tls: Option<Arc<NodeTls>>,
    known: watch::Sender<Known>,
    tickets: Mutex<Tickets>,
    /// The members whose addresses lead to a node with other data.
    lost: Mutex<BTreeSet<u64>>,
    /// Increased when a member has connected without the ticket that this node gave it, or with a ticket of
    /// its own that is new here: then other nodes are dialled at once.
    calls: watch::Sender<u64>,
}

/// The members, from several sources.
#[derive(Clone, Default, Debug)]
struct Known {
    /// As of the last log entry that this node applied.
    members: Members,
    /// The version of the table's rules.
    rules: u32,
    /// The members as received from a node that has applied more log entries. These members are connected to
    /// as well: they may need this node's vote for a majority.
    news: Members,
    /// Peer addresses from the nodes' own hellos: a node may have moved, or was restored from a backup. Tried
    /// after the address in the log, since a forged hello can contain any address.
    said: BTreeMap<u64, String>,
    /// Election time-outs that differ from this node's, in milliseconds, by the nodes' last hellos.
    other_timeouts: BTreeMap<u64, u64>,
}

impl Directory {
    pub(crate) fn new(
        founding: Founding,
        addresses: Addresses<'_>,
        members: Members,
        rules: u32,
        election_timeout: Duration,
        tls: Option<Arc<NodeTls>>,
    ) -> Arc<Self> {
        let (known, _) = watch::channel(Known { members, rules, ..Known::default() });
        let (client_address, peer_address) = (addresses.client.to_owned(), addresses.peer.to_owned());
        Arc::new(Self {
            founding,
            client_address,
            peer_address,
            election_timeout,
            tls,
            known,
            tickets: Mutex::default(),
            lost: Mutex::default(),
            calls: watch::Sender::default(),
        })
    }

    /// This node's id.
    pub(crate) fn node(&self) -> u64 {
        self.founding.node
    }

    /// To be called when the replica has applied a change of the members, or of the table's rules.
    pub(crate) fn applied(&self, members: &Members, rules: u32) {
        self.known.send_modify(|known| {
            known.members = members.clone();
            known.rules = rules;
        });
    }

    /// Whether the node was a member and was removed, as of the last applied log entry.
    pub(crate) fn has_removed(&self, node: u64) -> bool {
        self.known.borrow().members.removed.contains_key(&node)
    }

    /// The error for adding a node under the id of a member that was removed.
    pub(super) fn refuses(&self, node: u64) -> Option<Rejected> {
        let new = Change::Add(Member { node, ..Member::default() });
        let checked = self.known.borrow().members.check(&new, &BTreeSet::new());
        checked.err().filter(|why| matches!(why, Rejected::Removed { .. }))
    }

    /// Fills in this node's own addresses where the cluster has none: a node that was bootstrapped alone, or
    /// restored, has never published them. And notes the members whose data are lost.
    pub(crate) fn introduce(&self, nodes: &mut [ClusterNode]) {
        let lost = self.lost.lock();
        nodes.iter_mut().for_each(|it| it.data_lost = lost.contains(&it.node));
        drop(lost);
        for own in nodes.iter_mut().filter(|it| it.node == self.founding.node) {
            if own.peer_address.is_empty() {
                own.peer_address.clone_from(&self.peer_address);
            }
            if own.client_address.is_empty() {
                own.client_address.clone_from(&self.client_address);
            }
        }
    }

    /// Addresses of the other nodes, by id, in the order in which they are to be tried.
    pub(super) fn addresses(&self) -> BTreeMap<u64, Vec<String>> {
        let known = self.known.borrow();
        let news = (known.news.at > known.members.at).then_some(&known.news.nodes);
        let nodes = news.into_iter().flatten().chain(&known.members.nodes);
        let others = nodes
            .filter(|(node, _)| **node != self.founding.node && !known.members.removed.contains_key(node));
        let mut addresses: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (node, member) in others {
            let said = known.said.get(node).into_iter();
            let listed = [&member.peer_address].into_iter().chain(said);
            let mut all: Vec<String> = listed.filter(|address| !address.is_empty()).cloned().collect();
            all.dedup();
            addresses.insert(*node, all);
        }
        addresses.retain(|_, all| !all.is_empty());
        addresses
    }

    /// To be called after each attempt to connect to a member; `is_lost`: the node at its address said that
    /// its data are not those of the member.
    pub(super) fn called(&self, node: u64, is_lost: bool) {
        let mut lost = self.lost.lock();
        if is_lost {
            lost.insert(node)
        } else {
            lost.remove(&node)
        };
    }

    /// See [`Members::witnesses_needed`].
    pub(super) fn witnesses_needed(&self) -> usize {
        self.known.borrow().members.witnesses_needed(self.founding.node)
    }

    /// Whether the node is a member, as of the last applied log entry.
    pub(crate) fn is_member(&self, node: u64) -> bool {
        self.known.borrow().members.nodes.contains_key(&node)
    }

    /// Changes when other nodes are to be dialled at once.
    pub(super) fn calls(&self) -> watch::Receiver<u64> {
        self.calls.subscribe()
    }

    /// Changes when the addresses may have changed.
    pub(super) fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.known.subscribe()
    }
}

impl Greeter for Directory {
    fn hello(&self, to: u64, lane: Lane) -> Hello {
        let known = self.known.borrow();
        let mut hello = self.identity(&known).hello(to, lane);
        let own = hello.members.iter_mut().flat_map(|members| &mut members.nodes);
        own.filter(|member| member.node == self.founding.node)
            .for_each(|member| member.peer_address.clone_from(&self.peer_address));
        hello.election_timeout_ms = self.election_timeout.as_millis() as u64;
        hello
    }

    fn first_hello(&self, to: u64, lane: Lane) -> io::Result<Hello> {
        let mut hello = self.hello(to, lane);
        if to == 0 {
            return Ok(hello);
        }
        self.tickets.lock().fill(to, &mut hello).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(hello)
    }

    fn admit_guest(&self, hello: &Hello) -> Result<(), Refusal> {
        self.admit(hello)?;
        if hello.lane() == Lane::Greeting {
            return Ok(());
        }
        let mut tickets = self.tickets.lock();
        let (is_new, is_known) = (tickets.take(hello), tickets.knows(hello));
        drop(tickets);
        if is_new || !is_known {
            self.calls.send_modify(|calls| *calls = calls.wrapping_add(1));
        }
        if is_known { Ok(()) } else { Err(bootstrap::not_reached(hello.node)) }
    }

    fn tls(&self) -> Option<&NodeTls> {
        self.tls.as_deref()
    }

    fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        self.identity(&self.known.borrow()).admit(hello)?;
        self.compare_timeouts(hello);
        let Some(theirs) = &hello.members else { return Ok(()) };
        let said = theirs.nodes.iter().find(|member| member.node == hello.node);
        self.known.send_if_modified(|known| {
            let is_news = theirs.at > known.members.at.max(known.news.at) && theirs.nodes.len() <= NODES_MAX;
            if is_news {
                known.news = theirs.clone().into();
            }
            let address = said.map(|member| &member.peer_address).filter(|address| !address.is_empty());
            let has_moved = address.is_some_and(|address| {
                known.said.insert(hello.node, address.clone()).as_ref() != Some(address)
            });
            is_news || has_moved
        });
        Ok(())
    }
}

impl Directory {
    /// Logs an election time-out that differs from this node's, once for each node and value.
    fn compare_timeouts(&self, hello: &Hello) {
        let (node, me) = (hello.node, self.founding.node);
        let (theirs, own) = (hello.election_timeout_ms, self.election_timeout.as_millis() as u64);
        let mut is_news = false;
        self.known.send_if_modified(|known| {
            if theirs == 0 || theirs == own {
                known.other_timeouts.remove(&node);
            } else {
                is_news = known.other_timeouts.insert(node, theirs) != Some(theirs);
            }
            // This change needs no notification of the receivers.
            false
        });
        if is_news {
            tracing::warn!(
                node,
                "node {node} was started with `--election-timeout {theirs}ms`, this node, {me}, with {own}ms: the one with the \
                 longer says too seldom that it leads for those with the shorter, and is replaced again and again; start all \
                 nodes with the same"
            );
        }
    }

    fn identity<'a>(&'a self, known: &'a Known) -> NodeIdentity<'a> {
        NodeIdentity {
            founding: &self.founding,
            members: &known.members,
            rules: known.rules,
            rules_max: limits::RULES_VERSION,
            client_address: &self.client_address,
        }
    }
}
