//! The task that delivers the replica's outputs to streams and calls. It also wakes the replica once for all
//! events that were pushed in one pass over the ready tasks, and completes the drain barrier (P9).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lockkeeper_replica::{Answer, Event, Output};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::Front;
use super::calls::Ask;
use super::sessions::{CallAnswer, call_ended};
use super::transport::Acceptor;
use crate::inbox::{Outbox, ReplicaStatus};

/// A connection that has not passed a drain barrier after this many checks is closed, unless frames of it
/// were handed to the replica since the last check. Checks are counted, not their time: a stall of this
/// process is one check, however long it was.
const CHECKS_MAX: u32 = 5;
/// The number of checks after which any connection that has not passed is closed: no session expires before
/// that.
const MOVING_CHECKS_MAX: u32 = 25;
const CHECK: Duration = Duration::from_millis(200);

struct Pump {
    front: Arc<Front>,
    acceptor: Arc<Acceptor>,
    outbox: Arc<Outbox>,
    outputs: Vec<Output>,
    checks: u32,
    /// Whether the accept queue was found empty since the barrier began.
    has_accepted: bool,
    clock: Interval,
}

/// Runs until the replica has ended.
pub(crate) async fn pump(front: Arc<Front>, acceptor: Arc<Acceptor>, outbox: Arc<Outbox>) {
    let mut clock = interval(CHECK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pump =
        Pump { front, acceptor, outbox, outputs: Vec::new(), checks: 0, has_accepted: true, clock };
    poll_fn(|cx| pump.turn(cx)).await;
}

impl Pump {
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.front.replica.set_pump(cx.waker().clone());
        let state = self.outbox.take(&mut self.outputs, cx);
        self.deliver();
        let is_new = self.front.replica.set_state(state);
        if is_new && state == ReplicaStatus::Ready {
            // The replica knows the limits of those streams that were opened while it did not lead; the files
            // may have changed since.
            self.front.sessions.set_quotas();
        }
        if state == ReplicaStatus::Ended {
            return Poll::Ready(());
        }
        self.see_barrier_through(cx);
        self.front.replica.ring();
        Poll::Pending
    }

    fn deliver(&mut self) {
        if self.outputs.is_empty() {
            return;
        }
        let Front { replica, callers, sessions, calls, .. } = &*self.front;
        let (mut registry, mut asks) = (sessions.registry(), calls.asks());
        let mut drain = None;
        for output in self.outputs.drain(..) {
            match output {
                Output::Items(stream, items) => {
                    if let Some(stream) = registry.streams.get(&stream) {
                        stream.deliver(items);
                    }
                }
                Output::EndStream(stream, end) => {
                    if let Some(stream) = registry.streams.get(&stream) {
                        stream.end(end);
                    }
                }
                Output::Called(call, response) => {
                    registry.deliver_call(call, CallAnswer { response, waits: false });
                }
                Output::CallWaits(call, response) => {
                    registry.deliver_call(call, CallAnswer { response, waits: true });
                }
                Output::CallEnded(call, end) => registry.end_call(call, Err(call_ended(&end))),
                Output::OverQuota(from, text) => {
                    if let Some(caller) = registry.caller(from) {
                        callers.over_quota("table", caller, &text);
                    }
                }
                Output::Answer(ask, answer) => match (asks.get(&ask), answer) {
                    (Some(Ask::Watch(watcher)), Answer::Watched(changes)) => watcher.deliver(changes),
                    (Some(Ask::Watch(watcher)), answer) => watcher.end(answer, &replica.clients()),
                    (Some(Ask::Once(_)), answer) => {
                        if let Some(Ask::Once(sender)) = asks.remove(&ask) {
                            // Fails if the caller is gone.
                            let _ = sender.send(answer);
                        }
                    }
                    (None, _) => {}
                },
                Output::Drain(number) => drain = Some(number),
                Output::Members(members) => {
                    let nodes = members.nodes.into_values();
                    *replica.clients() = nodes.map(|node| (node.node, node.client_address)).collect();
                }
                // Handled by the replica's own thread.
                Output::Peer(..)
                | Output::Snapshot(_)
                | Output::Compact(_)
                | Output::SendSnapshot(_)
                | Output::SnapshotUnused(_)
                | Output::Differs(_)
                | Output::Wrong(_) => {}
            }
        }
        drop((registry, asks));
        if let Some(number) = drain {
            self.begin_barrier(number);
        }
    }

    /// Begins a drain barrier: all readable input is read, from every socket and from the connections that
    /// wait in the accept queue.
    fn begin_barrier(&mut self, number: u64) {
        self.front.replica.set_barrier(number);
        self.has_accepted = self.acceptor.accept_waiting();
        self.checks = 0;
        self.clock.reset();
        for connection in self.front.transport.connections().values() {
            connection.nudge(number);
        }
    }

    fn see_barrier_through(&mut self, cx: &mut Context<'_>) {
        let number = self.front.replica.barrier();
        if number == 0 {
            return;
        }
        let connections: Vec<_> = self.front.transport.connections().values().cloned().collect();
        let late: Vec<_> =
            connections.into_iter().filter(|connection| !connection.has_passed(number)).collect();
        if late.is_empty() && self.has_accepted {
            self.front.replica.set_barrier(0);
            return self.front.replica.push(Event::Drained(number));
        }
        while self.clock.poll_tick(cx).is_ready() {
            self.checks += 1;
            self.has_accepted = self.has_accepted || self.acceptor.accept_waiting();
            for connection in &late {
                let most = if connection.take_moved() { MOVING_CHECKS_MAX } else { CHECKS_MAX };
                if self.checks >= most {
                    tracing::warn!(
                        connection = connection.id,
                        "a client's connection is closed: it sent more than could be read while a session was about to \
                         expire"
                    );
                    connection.kill.cancel();
                } else {
                    connection.nudge(number);
                }
            }
        }
    }
}
