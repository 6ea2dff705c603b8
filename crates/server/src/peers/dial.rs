//! Connections that this node opens: one to every other node, reopened when it is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_wire::peer::{Lane, Refusal, RefusalCode};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::directory::Directory;
use super::handshake::{self, NoLink};
use super::{Handover, PeerConnection, Way};
use crate::inbox::Inbox;
use crate::tls::Transport;

/// The first and the longest pause between two attempts.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(20);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The state of the tasks that open connections to other nodes.
#[derive(Clone)]
pub(super) struct Dialler {
    pub(super) directory: Arc<Directory>,
    pub(super) handover: Arc<Handover>,
    pub(super) inbox: Arc<Inbox>,
    /// Receives the refusal if the cluster no longer accepts this node.
    pub(super) stop: mpsc::UnboundedSender<Refusal>,
    /// Members that have refused this node as no longer a member.
    witnesses: Arc<Mutex<BTreeSet<u64>>>,
}

impl Dialler {
    pub(super) fn new(
        directory: Arc<Directory>,
        handover: Arc<Handover>,
        inbox: Arc<Inbox>,
        stop: mpsc::UnboundedSender<Refusal>,
    ) -> Self {
        Self { directory, handover, inbox, stop, witnesses: Arc::default() }
    }

    /// Records whether the member `node` refuses this node as no longer a member; returns whether enough
    /// members do.
    fn is_settled(&self, node: u64, says_so: bool) -> bool {
        let mut witnesses = self.witnesses.lock();
        if says_so && self.directory.is_member(node) {
            witnesses.insert(node);
        } else {
            witnesses.remove(&node);
        }
        witnesses.len() >= self.directory.witnesses_needed()
    }

    /// Keeps a connection to every other node of the directory, for as long as it is polled.
    pub(super) async fn run(self) {
        let mut changes = self.directory.changes();
        let mut tasks: BTreeMap<u64, (Vec<String>, Task)> = BTreeMap::new();
        loop {
            changes.mark_unchanged();
            let addresses = self.directory.addresses();
            for node in tasks.keys().filter(|node| self.directory.has_removed(**node)) {
                tracing::info!(node, "node {node} was removed from the cluster; its connection is closed");
            }
            tasks.retain(|node, (known, _)| addresses.get(node) == Some(known));
            for (node, addresses) in addresses {
                tasks.entry(node).or_insert_with(|| {
                    let task = tokio::spawn(self.clone().keep(node, addresses.clone()));
                    (addresses, Task(task))
                });
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn keep(self, node: u64, addresses: Vec<String>) {
        let address = addresses.join(" or ");
        let mut calls = self.directory.calls();
        let mut pause = PAUSE_MIN;
        let mut said = String::new();
        // A node that stops closes one connection that it has just accepted; its port is closed next.
        let mut has_closed = false;
        loop {
            let number = self.handover.number();
            calls.mark_unchanged();
            let opened = handshake::open_any(&addresses, node, Lane::Messages, &*self.directory).await;
            let says_lost = |why: &Refusal| why.code() == RefusalCode::Wiped && why.node == node;
            self.directory.called(node, matches!(&opened, Err(NoLink::Refused(why)) if says_lost(why)));
            match opened {
                Ok((stream, hello)) => {
                    self.is_settled(node, false);
                    tracing::info!(node, address, "node {node} is reached at {address}");
                    (pause, said, has_closed) = (PAUSE_MIN, String::new(), false);
                    let (alive, over) = oneshot::channel();
                    match Transport::of(stream) {
                        Ok(transport) => self.handover.give(
                            PeerConnection {
                                number,
                                node,
                                way: Way::Out,
                                transport,
                                rules_max: hello.rules_max,
                                client_address: hello.client_address,
                                alive: Some(alive),
                            },
                            &self.inbox,
                        ),
                        Err(error) => tracing::warn!(%error, "a connection can't be handed over: {error}"),
                    }
                    // Returns when the link is dropped, which drops the sender; nothing is ever sent.
                    let _ = over.await;
                    tracing::info!(node, address, "the connection to node {node} at {address} is lost");
                }
                Err(why) => {
                    let text = why.to_string();
                    let is_early = matches!(&why, NoLink::Refused(why) if why.code() == RefusalCode::Later);
                    let closes =
                        matches!(&why, NoLink::Unreachable(error) if handshake::is_close(error.kind()));
                    let is_first_close = closes && !std::mem::replace(&mut has_closed, closes);
                    if text != said && !is_early && !is_first_close {
                        tracing::warn!(node, address, "node {node} can't be talked to at {address}: {text}");
                        said = text;
                    }
                    if let NoLink::Refused(refusal) = why {
                        let says_so = is_final(&refusal, self.directory.node());
                        if self.is_settled(node, says_so) && says_so {
                            // Fails only while the process ends.
                            let _ = self.stop.send(refusal);
                            return;
                        }
                    }
                    tokio::select! {
                        () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                        Ok(()) = calls.changed() => {
                            tokio::time::sleep(PAUSE_MIN).await;
                            pause = PAUSE_MIN;
                        }
                    }
                }
            }
        }
    }
}

/// Whether the refusal means that node `me` is no longer a member. A node whose own data are gone sends a
/// refusal about itself to every node that connects to it; that does not concern `me`.
pub(super) fn is_final(refusal: &Refusal, me: u64) -> bool {
    matches!(refusal.code(), RefusalCode::Wiped | RefusalCode::Removed) && refusal.node == me
}

/// A task that is aborted when the handle is dropped.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
