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
use super::transport::{Acceptor, Connection};
use crate::inbox::{Outbox, ReplicaStatus};

/// A connection that has not passed a drain barrier after this many checks is closed, unless frames of it
/// were handed to the replica since the last check. Checks are counted, not their time: a stall of this
/// process is one check, however long it was. Those at which enough others had passed are not counted: then
/// this node is behind, and not the connection. If it closed the connections of a crowd, their clients would
/// connect again, and put it further behind.
const CHECKS_MAX: u32 = 5;
/// The number of such checks after which also a connection is closed whose frames were handed on.
const MOVING_CHECKS_MAX: u32 = 25;
/// The number of all checks after which any connection that has not passed is closed: no session expires
/// before that.
const ALL_CHECKS_MAX: u32 = 150;
/// Enough: so many connections, or this share of those that had not passed.
const PASSED_MIN: usize = 64;
const PASSED_SHARE: usize = 16;
const CHECK: Duration = Duration::from_millis(200);

/// The checks of a barrier.
#[derive(Default)]
struct BarrierChecks {
    all: u32,
    /// Those at which too few connections had passed since the one before.
    idle: u32,
    /// How many had not passed at the last one.
    late: usize,
}

impl BarrierChecks {
    /// A check, at which so many connections have not passed.
    fn count(&mut self, late: usize) {
        let enough = PASSED_MIN.min(self.late.div_ceil(PASSED_SHARE));
        self.all += 1;
        self.idle += u32::from(late + enough > self.late);
        self.late = late;
    }

    /// Whether a connection that has not passed is closed. `has_moved`: frames of it were handed to the
    /// replica since the last check.
    fn are_over(&self, has_moved: bool) -> bool {
        let most = if has_moved { MOVING_CHECKS_MAX } else { CHECKS_MAX };
        self.idle >= most || self.all >= ALL_CHECKS_MAX
    }
}

struct Pump {
    front: Arc<Front>,
    acceptor: Arc<Acceptor>,
    outbox: Arc<Outbox>,
    outputs: Vec<Output>,
    checks: BarrierChecks,
    /// Connections that may not have passed the barrier yet.
    late: Vec<Arc<Connection>>,
    /// Whether the accept queue was found empty since the barrier began: connections that come later can't
    /// have had input then.
    has_accepted: bool,
    clock: Interval,
}

/// Runs until the replica has ended.
pub(crate) async fn pump(front: Arc<Front>, acceptor: Arc<Acceptor>, outbox: Arc<Outbox>) {
    let mut clock = interval(CHECK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pump = Pump {
        front,
        acceptor,
        outbox,
        outputs: Vec::new(),
        checks: BarrierChecks::default(),
        late: Vec::new(),
        has_accepted: true,
        clock,
    };
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
        self.clock.reset();
        self.late = self.front.transport.connections().values().cloned().collect();
        self.checks = BarrierChecks { late: self.late.len(), ..BarrierChecks::default() };
        self.late.iter().for_each(|connection| connection.nudge(number));
    }

    fn see_barrier_through(&mut self, cx: &mut Context<'_>) {
        let number = self.front.replica.barrier();
        if number == 0 {
            return;
        }
        // Not all of them at each turn: there may be very many.
        while self.late.pop_if(|last| last.has_passed(number)).is_some() {}
        if self.late.is_empty() && self.has_accepted {
            self.front.replica.set_barrier(0);
            return self.front.replica.push(Event::Drained(number));
        }
        while self.clock.poll_tick(cx).is_ready() {
            self.late.retain(|connection| !connection.has_passed(number));
            self.checks.count(self.late.len());
            if !self.has_accepted {
                self.has_accepted = self.acceptor.accept_waiting();
                let all = self.front.transport.connections().values().cloned().collect::<Vec<_>>();
                self.late = all.into_iter().filter(|connection| !connection.has_passed(number)).collect();
            }
            let mut closed = Vec::new();
            for connection in &self.late {
                if self.checks.are_over(connection.take_moved()) {
                    closed.push(connection.id);
                    connection.kill.cancel();
                } else {
                    connection.nudge(number);
                }
            }
            if let Some(first) = closed.first() {
                tracing::warn!(
                    first,
                    "{} connections of clients are closed: they sent more than could be read while a session was about \
                     to expire",
                    closed.len()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checks until connections are closed, if the number of those that have not passed falls like this.
    fn checks_until_over(first: usize, next: impl Fn(usize) -> usize) -> (u32, usize) {
        let mut checks = BarrierChecks { late: first, ..BarrierChecks::default() };
        let mut late = first;
        while late > 0 && !checks.are_over(false) {
            late = next(late);
            checks.count(late);
        }
        (checks.all, late)
    }

    #[test]
    fn connections_of_a_crowd_are_not_closed_while_a_busy_node_gets_on() {
        assert_eq!(checks_until_over(10_000, |late| late.saturating_sub(80)), (125, 0));
        // The node is too slow for so many, and no session may wait for ever.
        assert_eq!(checks_until_over(10_000, |late| late - 64), (ALL_CHECKS_MAX, 400));
    }

    #[test]
    fn few_connections_that_keep_a_barrier_waiting_are_closed_soon() {
        assert_eq!(checks_until_over(2, |late| late), (CHECKS_MAX, 2));
        // Others pass at first.
        assert_eq!(checks_until_over(1000, |late| if late > 500 { late - 100 } else { late }), (10, 500));
        // One passes at each check, so that the others may go on.
        assert_eq!(checks_until_over(500, |late| late - 1), (CHECKS_MAX, 495));
        let mut checks = BarrierChecks { late: 1, ..BarrierChecks::default() };
        (0..CHECKS_MAX).for_each(|_| checks.count(1));
        assert!(checks.are_over(false) && !checks.are_over(true), "what moves has more time");
    }
}
