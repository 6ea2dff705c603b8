//! A node's event loop: it handles the input, writes the record that must be durable, and then sends the
//! output that depends on the write.

use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper_core::WallTime;
use lockkeeper_replica::{Event, Fatal, Output, StreamId, Write};
use lockkeeper_wire::peer::{Hello, Lane, PeerFrame, PeerKind};
use lockkeeper_wire::request::Request;
use prost::Message;

use super::{NodeProcess, Pending, SimNode};
use crate::bulk::Bulk;
use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Core, Happening, Id};
use crate::disk_worker::DiskTaskResult;
use crate::mutants::MutantLocation;
use crate::net::Down;
use crate::scenario::Fault;

/// The wall clock at the beginning of a run: in 2027, so that the counter of tokens is far behind it (C3).
const BEGAN_AT: WallTime = WallTime(1_800_000_000_000);

impl SimNode {
    pub(super) fn turn_soon(&mut self, core: &mut Core, at: Nanos) {
        let Some(process) = &mut self.process else { return };
        let runs_at = process.runs_at();
        // After a stop, the loop and the socket readers resume in random order.
        let at = if runs_at > at { runs_at + core.dice.spread(5_000, 10 * MS) } else { at };
        if process.turn_at.is_none_or(|planned| at < planned) {
            process.turn_at = Some(at);
            core.at(at, Happening::NodeTurn { node: self.id, run: self.run });
        }
    }

    pub(crate) fn turn(&mut self, core: &mut Core, run: u64) {
        let local = self.clock.duration(core.now);
        let Some(process) = self.process.as_mut().filter(|_| run == self.run) else { return };
        // The event of a turn that was rescheduled is stale.
        if process.turn_at != Some(core.now) {
            return;
        }
        process.turn_at = None;
        if core.now < process.runs_at() {
            return self.turn_soon(core, core.now);
        }
        if process.writes.iter().any(|pending| matches!(pending, Pending::Write(_))) {
            return;
        }
        core.oracle.turn(core.now, self.id, local, &process.replica);
        let before = process.read_before.take().filter(|_| core.is(MutantLocation::ClockBeforeInput));
        process.visits_before = process.replica.table().visits();
        // The clocks of nodes have different origins: to the table, a new leader's wall clock jumps.
        process.replica.begin(before.unwrap_or(local), WallTime(BEGAN_AT.0 + local.as_millis() as u64));
        for (from, frame) in std::mem::take(&mut process.frames) {
            match PeerFrame::decode(frame.as_slice()) {
                Ok(frame) => process.replica.handle(Event::Peer(frame.messages)),
                Err(error) => {
                    let what = format!("node {} can't read what node {from} sent: {error}", self.id);
                    return core.broken("P7", &what);
                }
            }
        }
        process.has_sign = process.inbox.iter().any(is_sign);
        for event in std::mem::take(&mut process.inbox) {
            core.oracle.handed_over(core.now, self.id, &event);
            process.replica.handle(event);
        }
        if let Some(lost) = process.replica.lost_entries() {
            return core
                .broken("P10", &format!("node {} has lost what it had acknowledged: {lost:?}", self.id));
        }
        self.go_on(core);
    }

    pub(crate) fn wrote(&mut self, core: &mut Core, run: u64) {
        let node = self.id;
        let Some(process) = self.process.as_mut().filter(|_| run == self.run) else { return };
        if core.now < process.runs_at() {
            return core.at(process.next_poll(core.now), Happening::NodeWrote { node, run });
        }
        if process.dies_in_write {
            let pause = core.dice.within(5 * MS, 40 * MS);
            return self.crash_for(core, true, pause);
        }
        let Some(pending) = process.writes.pop_front() else { return };
        if let Pending::Write(write) = &pending
            && let Some(index) = write.installs()
            && let Err(error) = self.install(core, index)
        {
            core.note(format_args!("node {node} aborts: {error}"));
            return self.crash(core, true);
        }
        let Some(process) = self.process.as_mut() else { return };
        if let Err(error) = process.log.append(pending.record()) {
            core.note(format_args!("node {node} aborts: {error}"));
            return self.crash(core, true);
        }
        core.oracle.durable(node, pending.record());
        if let Pending::Write(write) = pending {
            self.go_on_after(core, *write);
        }
    }

    /// Replaces the log by a received snapshot. The snapshot file is published before the log is reset:
    /// otherwise a crash in between would leave a log that begins after an index which no snapshot covers.
    fn install(&mut self, core: &mut Core, index: u64) -> std::io::Result<()> {
        let Some(process) = &mut self.process else { return Ok(()) };
        let Some((bulk, sealed)) = process.incoming.remove(&index) else {
            return Err(std::io::Error::other("no snapshot of that index was received"));
        };
        core.note(format_args!("node {} installs snapshot {index}", self.id));
        let term = core.oracle.installing(self.id, index);
        let dies = core.is_stormy && core.dice.chance(25);
        let died = || std::io::Error::other("the power goes");
        let swapped = core.is(MutantLocation::InstallOrderSwapped);
        if swapped {
            process.log.reset(index, term)?;
            if dies {
                return Err(died());
            }
        }
        let mut older = sealed.publish()?;
        if dies {
            return Err(died());
        }
        if let Err(error) = older.run(&self.disk) {
            core.note(format_args!("node {}: old files stay: {error}", self.id));
        }
        if !swapped {
            process.log.reset(index, term)?;
        }
        core.settle_bulk(bulk, true);
        Ok(())
    }

    /// To be called when the simulated duration of a snapshot step has passed.
    pub(crate) fn stored(&mut self, core: &mut Core, run: u64) {
        let node = self.id;
        let Some(process) = self.process.as_mut().filter(|_| run == self.run) else { return };
        if core.now < process.stopped_until {
            return core.at(process.next_poll(core.now), Happening::NodeStored { node, run });
        }
        match process.chores.step(&self.disk) {
            None => {}
            Some(DiskTaskResult::Step) => process.inbox.push_back(Event::SnapshotStepDone),
            Some(DiskTaskResult::Failed) => process.inbox.push_back(Event::SnapshotFailed),
            Some(DiskTaskResult::Stop(error)) => {
                core.note(format_args!("node {node} aborts: {error}"));
                return self.crash(core, true);
            }
        }
        self.turn_soon(core, core.now);
    }

    fn go_on_after(&mut self, core: &mut Core, write: Write) {
        let now = self.clock.duration(core.now);
        let Some(process) = &mut self.process else { return };
        if let Err(error) = persisted(process, now, write) {
            return core.broken("P10", &format!("node {} stops: {error}", self.id));
        }
        self.go_on(core);
    }

    fn go_on(&mut self, core: &mut Core) {
        let now = self.clock.duration(core.now);
        loop {
            let Some(process) = &mut self.process else { return };
            let write = match process.replica.advance() {
                Ok(Some(write)) => write,
                Ok(None) => break,
                Err(error) => return core.broken("P10", &format!("node {} stops: {error}", self.id)),
            };
            observe(core, self.id, process);
            let record = write.record();
            let ends = core.oracle.wrote(core.now, self.id, record);
            if record.entries.is_empty() && record.hard_state.is_none() {
                if let Err(error) = persisted(process, now, write) {
                    return core.broken("P10", &format!("node {} stops: {error}", self.id));
                }
                observe(core, self.id, process);
                continue;
            }
            let slow = core.has(Fault::SlowDisk) && core.dice.chance(10);
            let (least, most) = if slow { (MS, 3 * SECOND) } else { core.scenario.disk };
            let pause = core.dice.spread(least, most);
            core.after(pause, Happening::NodeWrote { node: self.id, run: self.run });
            self.before_write(core, write.record(), ends);
            // These outputs do not depend on the write.
            self.put_out(core);
            let Some(process) = &mut self.process else { return };
            if core.is(MutantLocation::ReplyBeforeSync) {
                process.writes.push_back(Pending::Late(write.record().clone()));
                if let Err(error) = persisted(process, now, write) {
                    return core.broken("P10", &format!("node {} stops: {error}", self.id));
                }
                observe(core, self.id, process);
                continue;
            }
            process.writes.push_back(Pending::Write(Box::new(write)));
            return;
        }
        self.put_out(core);
        self.sleep(core);
    }

    fn put_out(&mut self, core: &mut Core) {
        let Some(process) = &mut self.process else { return };
        observe(core, self.id, process);
        let (mut frames, mut offers, mut members) = (Vec::new(), Vec::new(), None);
        let visits = process.replica.table().visits();
        let outputs = process.replica.take_outputs();
        let reads = process.replica.table().visits() - visits;
        // An installed snapshot brings a new table, which counts from 0.
        core.oracle.worked(core.now, self.id, visits.saturating_sub(process.visits_before), reads);
        process.visits_before += reads;
        for output in outputs {
            match output {
                Output::Peer(to, messages) => {
                    let frame = PeerFrame { messages };
                    if core.trace.is_kept() {
                        core.note(format_args!("node {} to node {to}: {}", self.id, shown(&frame)));
                    }
                    let has_entries = frame.messages.iter().any(|it| it.kind() == PeerKind::Append);
                    if !core.send_peer(self.id, to, frame.encode_to_vec()) && has_entries {
                        process.inbox.push_back(Event::PeerMissed(to));
                    }
                    frames.push(frame);
                }
                Output::Items(stream, items) => {
                    core.oracle.sent(core.now, self.id, stream, &items);
                    core.send_down(stream, Down::Items(items));
                }
                Output::EndStream(stream, end) => {
                    core.oracle.ended(self.id, stream);
                    core.send_down(stream, Down::End(end));
                    core.send_down(stream, Down::Closed);
                }
                Output::CallWaits(call, response) => {
                    core.oracle.called(core.now, self.id, call, &response);
                    process.polls.begin(call, process.replica.table());
                    core.send_down(StreamId(call.0), Down::Called { response, waits: true });
                }
                Output::Called(call, response) => {
                    core.oracle.called(core.now, self.id, call, &response);
                    process.polls.end(call);
                    core.send_down(StreamId(call.0), Down::Called { response, waits: false });
                }
                Output::CallEnded(call, end) => {
                    process.polls.end(call);
                    core.oracle.ended(self.id, StreamId(call.0));
                    core.send_down(StreamId(call.0), Down::End(end));
                }
                Output::Answer(ask, answer) => {
                    core.note(format_args!("operator hears from node {} {ask:?} {answer:?}", self.id));
                    core.oracle.answered(core.now, self.id, ask, &answer);
                    if core.awaited == Some(ask) {
                        core.answer = Some(answer);
                    }
                }
                Output::Drain(number) => {
                    core.oracle.barrier(core.now, self.id);
                    process.begin_barrier(number);
                }
                Output::Snapshot(step) => {
                    process.chores.todo = Some(step);
                    let pause = core.dice.spread(50_000, 20 * MS);
                    core.after(pause, Happening::NodeStored { node: self.id, run: self.run });
                }
                Output::SendSnapshot(offer) => {
                    let index = offer.head.as_ref().map_or(0, |head| head.index);
                    core.note(format_args!("node {} sends snapshot {index} to node {}", self.id, offer.to));
                    match process.chores.read(index) {
                        Ok((pieces, tail)) => {
                            let (from_run, offer) = (self.run, *offer);
                            offers.push(Bulk { from_run, hello: Hello::default(), offer, pieces, tail });
                        }
                        Err(why) => {
                            core.note(format_args!("node {} can't send it: {why}", self.id));
                            process.inbox.push_back(Event::SnapshotSent { to: offer.to, arrived: false });
                        }
                    }
                }
                Output::SnapshotUnused(index) => {
                    core.note(format_args!("node {} does not need snapshot {index}", self.id));
                    if let Some((bulk, sealed)) = process.incoming.remove(&index) {
                        core.settle_bulk(bulk, true);
                        // The next start removes files that could not be removed here.
                        let _ = sealed.give_up().run(&self.disk);
                    }
                }
                Output::Members(it) => members = Some(it),
                Output::OverQuota(from, text) => {
                    core.note(format_args!("node {} refuses a request of {from:?}: {text}", self.id));
                }
                Output::Differs(it) | Output::Wrong(it) => {
                    let what =
                        format!("node {} and node {} have different tables: {it:x?}", self.id, it.node);
                    return core.broken("P1", &what);
                }
                Output::Compact(index) => {
                    core.note(format_args!("node {} compacts its log up to {index}", self.id));
                    if let Err(error) = process.log.compact(index).run(&self.disk) {
                        core.note(format_args!("node {}: old files stay: {error}", self.id));
                    }
                }
            }
        }
        core.oracle.put_out(self.id);
        if let Some((session, missed)) = process.polls.missed(process.replica.table())
            && core.oracle.may_answer_call(self.id, session)
        {
            return core.broken("P7", &missed);
        }
        for bulk in offers {
            let Some(hello) = self.hello(bulk.offer.to, Lane::Snapshot) else { continue };
            core.send_bulk(Bulk { hello, ..bulk });
        }
        for frame in frames {
            self.sends(core, &frame);
        }
        if let Some(members) = members {
            self.applied_members(core, members);
        }
    }

    /// Schedules the next turn: when a timer is due, or soon if input is pending. Input that arrives later
    /// makes it earlier.
    fn sleep(&mut self, core: &mut Core) {
        let Some(process) = &self.process else { return };
        let wake = self.clock.when(process.replica.next_wake().as_nanos() as Nanos);
        // A turn takes some time, even if the next one is due at once.
        let at = if process.inbox.is_empty() { wake.max(core.now + 20_000) } else { core.now + 20_000 };
        self.turn_soon(core, at);
    }
}

/// Tells the replica that a write is durable. A table that it installs has its own counter of visited
/// entries.
fn persisted(process: &mut NodeProcess, now: Duration, write: Write) -> Result<(), Fatal> {
    let installs = write.installs().is_some();
    process.replica.persisted(now, write.synced())?;
    if installs {
        process.visits_before = process.replica.table().visits();
    }
    Ok(())
}

/// Lets the oracle read the replica. Entries that the oracle visits do not count as work of the turn.
fn observe(core: &mut Core, node: Id, process: &mut NodeProcess) {
    let before = process.replica.table().visits();
    core.observe(node, &process.replica);
    process.visits_before += process.replica.table().visits() - before;
}

/// Whether the event contains a keep-alive or an attach. A call is both.
fn is_sign(event: &Event) -> bool {
    match event {
        Event::Frame(_, requests) => {
            requests.iter().any(|it| matches!(it, Request::KeepAlive { .. } | Request::Attach { .. }))
        }
        Event::Called(..) => true,
        _ => false,
    }
}

/// A short form of a frame for the trace.
fn shown(frame: &PeerFrame) -> String {
    let mut text = String::new();
    for it in &frame.messages {
        let (kind, term, at) = (it.kind(), it.term, (it.log_term, it.index));
        let (count, commit, reject) = (it.entries.len(), it.commit, it.reject);
        // Writing to a String can't fail.
        let _ = write!(text, "[{kind:?} t{term} at {at:?} +{count} commit {commit} reject {reject}]");
    }
    text
}
