//! One connection to a peer as bytes: frames in, frames out. Knows what a well-formed frame is, nothing of what it means.
//!
//! Responsible for: what one side put is what the other reads, whole frames in their order; and every frame that is dropped
//! is known to be, since the consensus must send again what a peer never got.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use lockkeeper_wire::peer::{PeerFrame, PeerKind, PeerMessage};
use mio::net::TcpStream;
use prost::Message;

/// More bytes than this may not wait for a peer when another frame is put: it does not keep up, and is told less. Above all that the
/// consensus has under way to one follower at a time (32 MiB), or a node that lags would never be sent what it lacks.
pub(super) const OUT_BYTES_MAX: usize = 40 << 20;
/// A frame that has so many bytes of entries is followed by another.
const FRAME_BYTES: usize = 4 << 20;
/// The longest frame that is read: one that is nearly full, and an entry of the greatest size.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// What one look reads at least, if there is so much.
const READ_BYTES: usize = 64 << 10;
/// A connection on which nothing was written for so long says that it lives.
const QUIET: Duration = Duration::from_secs(1);
/// A round's number, or the mark of a vote that a leader has asked for.
const CONTEXT_BYTES_MAX: usize = 32;
const LENGTH_BYTES: usize = 4;

/// Bytes for one peer that wait to be written.
pub(super) struct Outgoing {
    socket: TcpStream,
    waiting: Vec<u8>,
    /// How many of them are written.
    written: usize,
    /// Where in `waiting` frames end, rising.
    ends: VecDeque<usize>,
    last_write: Instant,
}

impl Outgoing {
    pub(super) fn new(socket: TcpStream) -> Self {
        let ends = VecDeque::new();
        Self { socket, waiting: Vec::new(), written: 0, ends, last_write: Instant::now() }
    }

    pub(super) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Puts messages behind those that wait. `false`: too much waits already, and all of it was dropped, these too.
    pub(super) fn put(&mut self, mut messages: Vec<PeerMessage>) -> bool {
        while !messages.is_empty() {
            if self.waiting.len() - self.written > OUT_BYTES_MAX {
                self.drop_waiting();
                return false;
            }
            let mut bytes = 0;
            let fits = messages.iter().position(|message| {
                bytes += message.entries.iter().map(|entry| entry.data.len()).sum::<usize>();
                bytes > FRAME_BYTES
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

    /// All that waits but the frame that is written in part, or would be next.
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
        if self.waiting.is_empty() {
            if self.last_write.elapsed() < QUIET {
                return Ok(());
            }
            self.put_frame(&PeerFrame::default());
        }
        while self.written < self.waiting.len() {
            match self.socket.write(&self.waiting[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.last_write = Instant::now();
        }
        self.forget_written();
        Ok(())
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

/// Bytes from one peer that are no whole frame yet.
pub(super) struct Incoming {
    socket: TcpStream,
    /// `..filled` was read.
    buffer: Vec<u8>,
    filled: usize,
    /// Who writes, and who is meant.
    from: u64,
    to: u64,
}

/// How a look at a socket ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looked {
    /// Everything that had arrived was read.
    Empty,
    /// There may be more.
    More,
    /// The other side has closed it, after all that was read.
    Closed,
}

impl Incoming {
    pub(super) fn new(socket: TcpStream, from: u64, to: u64) -> Self {
        Self { socket, buffer: vec![0; READ_BYTES], filled: 0, from, to }
    }

    pub(super) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Reads what has arrived, and puts the messages of whole frames into `out`; takes what it read from `room`, and stops
    /// when there is none. `is_ending`: the other side is known to have closed it.
    ///
    /// # Errors
    /// The connection is broken, or what arrives on it makes no sense. What was put before that counts.
    pub(super) fn read(
        &mut self,
        room: &mut usize,
        is_ending: bool,
        out: &mut Vec<PeerMessage>,
    ) -> io::Result<Looked> {
        loop {
            if *room == 0 {
                return Ok(Looked::More);
            }
            let free = self.buffer.len() - self.filled;
            match self.socket.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Ok(Looked::Closed),
                Ok(count) => {
                    *room = room.saturating_sub(count);
                    self.filled += count;
                    self.parse(out)?;
                    // Fewer than there was room for: nothing is left, and what comes later is told anew. But the end of the
                    // connection is told once, perhaps together with these.
                    if count < free && !is_ending {
                        return Ok(Looked::Empty);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Looked::Empty),
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
            let frame = PeerFrame::decode(frame).map_err(|error| invalid(format!("no frame: {error}")))?;
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

/// What the consensus relies on, of a message that came in on the link of `from`.
///
/// A term of 0 would mean "not from the network" to it, and skip every check of terms.
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
