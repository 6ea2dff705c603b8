//! One connection's state in the drain barrier (P9): whether all input that had arrived when a barrier began
//! was passed to the replica.
//!
//! Does no I/O. "Arrived" means readable from the socket when the barrier begins. A stream's *reader* is the
//! task that takes frames from the stream and passes them to the replica ("handed on"). All input that had
//! arrived was handed on once three conditions hold:
//! - the socket was found empty after the barrier began;
//! - every stream that was opened by the bytes read until then has its reader;
//! - each reader has then found no further frame, or has handed on as many bytes as can have been unread when
//!   the socket was found empty.
//!
//! Only a read that would block proves that the socket is empty; a readiness flag of "not readable" does not.
//! Example, barrier 7:
//!
//! ```text
//! want(7)                  begun; the connection's task is woken
//! read -> 90 bytes         not yet
//! read -> would block      seen_empty(): empty = 7; the readers of its streams are woken
//! reader 3 -> a frame      handed on
//! reader 3 -> nothing      idle(3): stream 3 has passed barrier 7, and so has the connection
//! ```

use std::collections::BTreeMap;

use lockkeeper_replica::StreamId;

/// The barrier state of one connection. Barriers are numbered upwards from 1.
#[derive(Default, Debug)]
pub(super) struct DrainBarrier {
    /// The latest barrier that has begun.
    wanted: u64,
    /// The latest barrier for which the socket was found empty after the barrier began.
    empty: u64,
    /// The socket is at its end, failed or was given up: nothing more is read from it.
    is_over: bool,
    /// The number of streams that were accepted and have no registered reader yet.
    starting: usize,
    readers: BTreeMap<StreamId, StreamReader>,
    /// Whether a reader has handed on input that a barrier waits for, since the last `take_moved`.
    has_moved: bool,
}

#[derive(Default, Debug)]
struct StreamReader {
    /// The latest barrier that this stream has passed.
    passed: u64,
    /// The bytes handed on since the socket was found empty, without the first frame after that: a part of
    /// the first frame had been read before. `None`: no frame was handed on since.
    handed_on: Option<usize>,
}

impl DrainBarrier {
    /// A barrier begins. Returns `true` if it is new.
    pub(super) fn want(&mut self, barrier: u64) -> bool {
        let is_new = barrier > self.wanted;
        self.wanted = self.wanted.max(barrier);
        if is_new && self.is_over {
            self.begin_to_count();
        }
        is_new
    }

    /// Whether the next read must be a system call, without regard to the runtime's readiness flag.
    pub(super) fn wants_proof(&self) -> bool {
        self.wanted > self.empty && !self.is_over
    }

    /// To be called when a read of the socket itself would have blocked.
    pub(super) fn seen_empty(&mut self) {
        if self.empty < self.wanted {
            self.empty = self.wanted;
            self.begin_to_count();
        }
    }

    /// To be called when the socket is at its end, has failed or was given up.
    pub(super) fn over(&mut self) {
        if !self.is_over {
            self.is_over = true;
            self.begin_to_count();
        }
    }

    fn begin_to_count(&mut self) {
        self.readers.values_mut().for_each(|reader| reader.handed_on = None);
    }

    pub(super) fn starting(&mut self) {
        self.starting += 1;
    }

    pub(super) fn started(&mut self) {
        self.starting -= 1;
    }

    pub(super) fn opened(&mut self, stream: StreamId) {
        self.readers.insert(stream, StreamReader::default());
    }

    pub(super) fn closed(&mut self, stream: StreamId) {
        self.readers.remove(&stream);
    }

    /// To be called when a reader has handed on all its input.
    pub(super) fn idle(&mut self, stream: StreamId) {
        let level = self.level();
        if let Some(reader) = self.readers.get_mut(&stream) {
            reader.passed = level;
        }
    }

    /// To be called when a reader has handed on a frame of `bytes` bytes. `unread_max`: the maximum number of
    /// bytes of a stream that can have been read from the socket and not handed on. Returns whether the
    /// stream has passed a barrier with this frame.
    pub(super) fn handed_on(&mut self, stream: StreamId, bytes: usize, unread_max: usize) -> bool {
        let level = self.level();
        let Some(reader) = self.readers.get_mut(&stream).filter(|reader| reader.passed < level) else {
            return false;
        };
        self.has_moved = true;
        let handed_on = reader.handed_on.map_or(0, |before| before + bytes);
        reader.handed_on = Some(handed_on);
        let passes = handed_on >= unread_max;
        if passes {
            reader.passed = level;
        }
        passes
    }

    /// Whether a reader has handed on input that a barrier waits for, since the last call.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Whether all input that had arrived when the barrier began was handed on.
    pub(super) fn has_passed(&self, barrier: u64) -> bool {
        self.level() >= barrier
            && self.starting == 0
            && self.readers.values().all(|reader| reader.passed >= barrier)
    }

    /// Whether the connection has no stream left, and will get none.
    pub(super) fn is_empty(&self) -> bool {
        self.is_over && self.starting == 0 && self.readers.is_empty()
    }

    fn level(&self) -> u64 {
        if self.is_over { self.wanted } else { self.empty }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(3);
    const B: StreamId = StreamId(4);

    #[test]
    fn idle_connection_passes_once_its_socket_was_found_empty() {
        let mut gate = DrainBarrier::default();
        assert!(!gate.wants_proof(), "nobody asks");
        assert!(gate.want(7));
        assert!(!gate.want(7), "no news");
        assert!(gate.wants_proof() && !gate.has_passed(7));
        gate.seen_empty();
        assert!(gate.has_passed(7) && !gate.wants_proof());
        assert!(!gate.has_passed(8), "a later barrier needs a later look");
    }

    #[test]
    fn checks_before_the_barrier_began_do_not_count() {
        let mut gate = DrainBarrier::default();
        gate.opened(A);
        gate.seen_empty();
        gate.idle(A);
        gate.want(1);
        assert!(!gate.has_passed(1));
        // The reader was polled before the socket was found empty: bytes read since may contain a frame.
        gate.idle(A);
        gate.seen_empty();
        assert!(!gate.has_passed(1));
        gate.idle(A);
        assert!(gate.has_passed(1));
    }

    #[test]
    fn barrier_waits_for_every_reader_and_for_new_streams_without_one() {
        let mut gate = DrainBarrier::default();
        gate.opened(A);
        gate.want(1);
        gate.starting();
        gate.seen_empty();
        gate.idle(A);
        assert!(!gate.has_passed(1), "a stream was accepted, its reader is to come");
        gate.opened(B);
        gate.started();
        assert!(!gate.has_passed(1), "the new reader hasn't looked");
        gate.idle(B);
        assert!(gate.has_passed(1));
    }

    #[test]
    fn closed_connection_passes_after_its_last_input_was_handed_on() {
        let mut gate = DrainBarrier::default();
        gate.opened(A);
        gate.want(1);
        gate.over();
        assert!(!gate.wants_proof(), "there is nothing to read any more");
        assert!(!gate.has_passed(1), "its last frame may not be handed on");
        gate.closed(A);
        assert!(gate.has_passed(1) && gate.is_empty());
        assert!(gate.want(2) && gate.has_passed(2));
    }

    /// Its client always sends more, so the reader never finds nothing.
    #[test]
    fn reader_passes_once_it_has_handed_on_as_much_as_was_unread() {
        const UNREAD: usize = 100;
        let mut gate = DrainBarrier::default();
        gate.opened(A);
        assert!(!gate.handed_on(A, 1_000, UNREAD), "before any barrier");
        gate.want(1);
        assert!(!gate.handed_on(A, 1_000, UNREAD), "the socket may have more");
        gate.seen_empty();
        assert!(!gate.take_moved());
        assert!(!gate.handed_on(A, 1_000, UNREAD), "a part of the first frame was read before");
        assert!(!gate.handed_on(A, 60, UNREAD) && !gate.has_passed(1));
        assert!(gate.take_moved() && !gate.take_moved());
        gate.seen_empty();
        assert!(gate.handed_on(A, 60, UNREAD), "a second look at the socket changes nothing");
        assert!(gate.has_passed(1));
        assert!(!gate.handed_on(A, 60, UNREAD), "it has passed already");
        gate.want(2);
        gate.seen_empty();
        assert!(!gate.handed_on(A, 1_000, UNREAD) && !gate.has_passed(2), "each barrier counts for itself");
        // At the end of the socket, counting begins again.
        gate.want(3);
        gate.over();
        assert!(!gate.handed_on(A, 1_000, UNREAD));
        assert!(gate.handed_on(A, 100, UNREAD) && gate.has_passed(3));
    }

    #[test]
    fn barrier_does_not_wait_for_closed_readers() {
        let mut gate = DrainBarrier::default();
        gate.opened(A);
        gate.opened(B);
        gate.want(1);
        gate.seen_empty();
        gate.idle(A);
        gate.closed(B);
        assert!(gate.has_passed(1));
        assert!(!gate.is_empty(), "the connection is open");
        gate.idle(B);
        assert!(gate.has_passed(1));
    }
}
