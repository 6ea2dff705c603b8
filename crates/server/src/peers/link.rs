//! One connection to a peer as bytes: writes queued frames, reads and validates frames. Does not interpret
//! them.
//!
//! Responsible for: the receiver reads the frames that the sender queued, complete and in order. Every
//! dropped frame is reported, since the consensus must then send its messages again.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use lockkeeper_wire::peer::{PeerFrame, PeerKind, PeerMessage};
use lockkeeper_wire::{PEER_FRAME_MESSAGES_MAX, decode_peer_frame};
use mio::net::TcpStream;
use prost::Message;

use crate::tls::Transport;

/// No further frame is queued for a peer while more bytes than this are pending: the peer does not keep up,
/// and all pending frames are dropped. Must exceed the bytes that the consensus has in flight to one follower
/// (32 MiB); otherwise a follower that lags would never receive the log entries that it lacks.
pub(super) const OUT_BYTES_MAX: usize = 40 << 20;
/// Messages with more bytes of log entries than this are split into several frames, as are very many
/// messages.
const FRAME_BYTES: usize = 4 << 20;
/// The longest frame that is accepted: a nearly full one, plus a message with the longest log entry.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// The smallest read buffer.
const READ_BYTES: usize = 64 << 10;
/// A connection without writes for this long sends an empty frame, so that TCP notices if the peer is gone.
const QUIET: Duration = Duration::from_secs(1);
/// The longest context of a message: the number of a quorum read (ReadIndex round), or raft-rs' flag on the
/// vote requests of a leadership transfer.
const CONTEXT_BYTES_MAX: usize = 32;
const LENGTH_BYTES: usize = 4;

/// Pending bytes for one peer.
pub(super) struct PeerOutbox {
    transport: Transport<TcpStream>,
    waiting: Vec<u8>,
    /// The number of bytes in `waiting` that are written.
    written: usize,
    /// The ends of frames in `waiting`, ascending.
    ends: VecDeque<usize>,
    last_write: Instant,
}

impl PeerOutbox {
    pub(super) fn new(transport: Transport<TcpStream>) -> Self {
        let ends = VecDeque::new();
        Self { transport, waiting: Vec::new(), written: 0, ends, last_write: Instant::now() }
    }

    pub(super) fn socket(&mut self) -> &mut TcpStream {
        self.transport.socket_mut()
    }

    /// Queues messages. If too many bytes are pending, drops all of them and these messages, and returns
    /// `false`.
    pub(super) fn put(&mut self, mut messages: Vec<PeerMessage>) -> bool {
        while !messages.is_empty() {
            if self.waiting.len() - self.written > OUT_BYTES_MAX {
                self.drop_waiting();
                return false;
            }
            let mut bytes = 0;
            let fits = messages.iter().enumerate().position(|(count, message)| {
                bytes += message.entries.iter().map(|entry| entry.data.len()).sum::<usize>();
                bytes > FRAME_BYTES || count >= PEER_FRAME_MESSAGES_MAX
            });
            let rest = messages.split_off(fits.map_or(messages.len(), |first| first.max(1)));
            self.put_frame(&PeerFrame { messages });
            messages = rest;
        }
        true
    }

    fn put_frame(&mut self, frame: &PeerFrame) {
        let start = self.waiting.len();
        self.waiting.extend_from_slice(&[0; LENGTH_BYTES]);
        frame.encode(&mut self.waiting).expect("a Vec has room");
        let length = self.waiting.len() - start - LENGTH_BYTES;
        self.waiting[start..start + LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
        self.ends.push_back(self.waiting.len());
    }

    /// Drops all pending frames except one that may be partly written.
    fn drop_waiting(&mut self) {
        let is_begun = self.written > 0 && self.ends.front().is_some_and(|end| *end > self.written);
        self.ends.truncate(usize::from(is_begun));
        self.waiting.truncate(self.ends.front().copied().unwrap_or(0).max(self.written));
    }

    /// Writes as much as the socket takes.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() && !self.transport.has_unsent() {
            if self.last_write.elapsed() < QUIET {
                return Ok(());
            }
            self.put_frame(&PeerFrame::default());
        }
        while self.written < self.waiting.len() {
            match self.transport.write(&self.waiting[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.last_write = Instant::now();
        }
        self.forget_written();
        match self.transport.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    fn forget_written(&mut self) {
        while self.ends.front().is_some_and(|end| *end <= self.written) {
            self.ends.pop_front();
        }
        if self.written == self.waiting.len() {
            self.waiting.clear();
            self.waiting.shrink_to(FRAME_BYTES);
        } else if self.written > OUT_BYTES_MAX / 2 {
            self.waiting.drain(..self.written);
            self.ends.iter_mut().for_each(|end| *end -= self.written);
        } else {
            return;
        }
        self.written = 0;
    }
}

/// Reads frames from one peer; keeps the bytes that are no complete frame yet.
pub(super) struct Incoming {
    transport: Transport<TcpStream>,
    /// The received bytes, up to `filled`; the rest is room for the next read.
    buffer: Vec<u8>,
    filled: usize,
    /// The nodes that every message must name as its sender and its receiver.
    from: u64,
    to: u64,
}

/// How reading a socket ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadOutcome {
    /// Everything that had arrived was read.
    Empty,
    /// The socket may have more to read.
    More,
    /// The other side has closed the connection, and everything was read before.
    Closed,
}

impl Incoming {
    pub(super) fn new(transport: Transport<TcpStream>, from: u64, to: u64) -> Self {
        Self { transport, buffer: vec![0; READ_BYTES], filled: 0, from, to }
    }

    pub(super) fn socket(&mut self) -> &mut TcpStream {
        self.transport.socket_mut()
    }

    /// Reads the available bytes, and appends the messages of complete frames to `out`. Reduces `room` by the
    /// number of bytes read, and stops at zero. `is_ending`: the other side is known to have closed the
    /// connection.
    ///
    /// # Errors
    /// The connection is broken, or a frame is invalid. Messages that were appended before remain valid.
    pub(super) fn read(
        &mut self,
        room: &mut usize,
        is_ending: bool,
        out: &mut Vec<PeerMessage>,
    ) -> io::Result<ReadOutcome> {
        loop {
            if *room == 0 {
                return Ok(ReadOutcome::More);
            }
            let free = self.buffer.len() - self.filled;
            match self.transport.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Ok(ReadOutcome::Closed),
                Ok(count) => {
                    *room = room.saturating_sub(count);
                    self.filled += count;
                    self.parse(out)?;
                    // A short read empties the socket, and bytes that arrive later cause a new event. The end
                    // of the connection causes one event only, perhaps the same as these bytes; so if it was
                    // reported, reading goes on to the end.
                    if count < free && !is_ending && self.transport.short_read_empties() {
                        return Ok(ReadOutcome::Empty);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadOutcome::Empty),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn parse(&mut self, out: &mut Vec<PeerMessage>) -> io::Result<()> {
        let mut at = 0;
        let mut wanted = READ_BYTES;
        while let Some(head) = self.buffer[at..self.filled].first_chunk::<LENGTH_BYTES>() {
            let length = u32::from_le_bytes(*head) as usize;
            if length > FRAME_BYTES_MAX {
                return Err(invalid(format!(
                    "a frame of {length} bytes; at most {FRAME_BYTES_MAX} are allowed"
                )));
            }
            let Some(frame) = self.buffer[at + LENGTH_BYTES..self.filled].get(..length) else {
                wanted = wanted.max(LENGTH_BYTES + length);
                break;
            };
            let frame = decode_peer_frame(frame).map_err(|error| invalid(format!("no frame: {error}")))?;
            for message in frame.messages {
                check(&message, self.from, self.to).map_err(invalid)?;
                out.push(message);
            }
            at += LENGTH_BYTES + length;
        }
        if at > 0 {
            self.buffer.copy_within(at..self.filled, 0);
            self.filled -= at;
        }
        if self.buffer.len() != wanted {
            self.buffer.resize(wanted.max(self.filled), 0);
            self.buffer.shrink_to(wanted);
        }
        Ok(())
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Checks the fields of a received message that the consensus relies on. `from` is the node of the link.
///
/// In particular, the consensus would take a message of term 0 for a local one, and skip every check of
/// terms.
fn check(message: &PeerMessage, from: u64, to: u64) -> Result<(), String> {
    if (message.from, message.to) != (from, to) {
        return Err(format!(
            "a message from node {} to node {}, on a connection from node {from} to node {to}",
            message.from, message.to
        ));
    }
    if message.term == 0 {
        return Err("a message of term 0".to_owned());
    }
    if message.kind() == PeerKind::Unspecified {
        return Err(format!("a message of unknown kind {}", message.kind));
    }
    if message.context.len() > CONTEXT_BYTES_MAX {
        return Err(format!(
            "a context of {} bytes; at most {CONTEXT_BYTES_MAX} are allowed",
            message.context.len()
        ));
    }
    let mut before = message.index;
    for entry in &message.entries {
        if before.checked_add(1) != Some(entry.index) {
            return Err(format!("entry {} follows entry {before}", entry.index));
        }
        before = entry.index;
    }
    Ok(())
}
