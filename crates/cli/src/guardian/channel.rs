//! One end of a socket between the wrapper (`lockkeeper run`) and its guardian process, or its witness.
//!
//! Never blocks, since the peer may be stopped (SIGSTOP) for any length of time. Messages that the socket
//! does not accept wait in a queue. The channel does not interpret messages, with one exception: a new "valid
//! until" replaces one that is the last message of the queue, so that renewals do not accumulate.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::protocol::MESSAGE_BYTES_MAX;

/// The result of a receive.
pub(crate) enum Incoming {
    Message(Vec<u8>),
    /// No message is available now.
    Empty,
    /// The peer has closed its end, and all its messages have been read.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    waiting: VecDeque<Vec<u8>>,
}

impl Channel {
    /// Creates two connected ends, both close-on-exec. SEQPACKET preserves message boundaries. End-of-file
    /// means that the peer process has ended.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self::new(ours), theirs))
    }

    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, waiting: VecDeque::new() }
    }

    /// Sends or queues a message. Socket errors are not reported here: they mean that the peer is gone, which
    /// `receive` reports. With `replaces_waiting`, the message replaces one of the same kind at the end of
    /// the queue.
    pub(crate) fn send(&mut self, message: Vec<u8>, replaces_waiting: bool) {
        if replaces_waiting && self.waiting.back().is_some_and(|last| last.first() == message.first()) {
            self.waiting.pop_back();
        }
        self.waiting.push_back(message);
        self.flush();
    }

    /// Sends queued messages until the socket would block.
    pub(crate) fn flush(&mut self) {
        while let Some(message) = self.waiting.front() {
            match send(self.socket.as_raw_fd(), message, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(_) => _ = self.waiting.pop_front(),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => return,
                Err(_) => self.waiting.clear(),
            }
        }
    }

    /// Whether messages are queued: then `flush` must be called once the socket is writable.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn receive(&mut self) -> Incoming {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                // Messages are never empty, so a length of 0 is end-of-file.
                Ok(0) => return Incoming::Closed,
                Ok(length) => return Incoming::Message(buffer[..length].to_vec()),
                // ECONNRESET: the peer exited before it had read all our messages. The kernel reports this
                // once, before the peer's own unread messages.
                Err(Errno::EINTR | Errno::ECONNRESET) => {}
                Err(Errno::EAGAIN) => return Incoming::Empty,
                Err(_) => return Incoming::Closed,
            }
        }
    }
}

/// Receives the next message; `None` once the peer has closed its end. Also sends queued messages.
/// Cancel-safe.
pub(crate) async fn next_message(channel: &mut AsyncFd<Channel>) -> Option<Vec<u8>> {
    loop {
        let mut interest = Interest::READABLE;
        if channel.get_ref().has_waiting() {
            interest |= Interest::WRITABLE;
        }
        // An error here means that the runtime shuts down; the peer notices the end of this process.
        let Ok(mut ready) = channel.ready_mut(interest).await else {
            return std::future::pending().await;
        };
        let inner = ready.get_inner_mut();
        inner.flush();
        let is_flushed = !inner.has_waiting();
        match inner.receive() {
            Incoming::Message(message) => return Some(message),
            Incoming::Closed => return None,
            Incoming::Empty if is_flushed => ready.clear_ready_matching(tokio::io::Ready::READABLE),
            Incoming::Empty => ready.clear_ready(),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(channel: &mut Channel) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Incoming::Message(message) = channel.receive() {
            all.push(message);
        }
        all
    }

    #[test]
    fn send_does_not_block_and_queued_messages_are_all_delivered() {
        let (mut ours, theirs) = Channel::pair().unwrap();
        let mut theirs = Channel::new(theirs);
        let mut sent = 0u32;
        while !ours.has_waiting() {
            ours.send([&b"F"[..], &sent.to_le_bytes()].concat(), false);
            sent += 1;
        }
        // Only the newest "valid until" is kept in the queue.
        ours.send(b"V1".to_vec(), true);
        ours.send(b"V2".to_vec(), true);

        let mut got = received(&mut theirs);
        while ours.has_waiting() {
            ours.flush();
            got.extend(received(&mut theirs));
        }
        got.extend(received(&mut theirs));
        assert_eq!(got.pop().unwrap(), b"V2");
        let numbers: Vec<_> = got.iter().map(|m| u32::from_le_bytes(m[1..].try_into().unwrap())).collect();
        assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
    }

    #[test]
    fn closed_is_reported_after_the_last_message() {
        let (mut ours, theirs) = Channel::pair().unwrap();
        let mut theirs = Channel::new(theirs);
        theirs.send(b"z".to_vec(), false);
        drop(theirs);
        assert!(matches!(ours.receive(), Incoming::Message(m) if m == b"z"));
        assert!(matches!(ours.receive(), Incoming::Closed));
    }

    #[test]
    fn last_message_is_read_even_if_the_peer_exits_with_unread_input() {
        let (mut ours, theirs) = Channel::pair().unwrap();
        let mut theirs = Channel::new(theirs);
        ours.send(b"C".to_vec(), false);
        theirs.send(b"g".to_vec(), false);
        drop(theirs);
        assert!(matches!(ours.receive(), Incoming::Message(m) if m == b"g"));
        assert!(matches!(ours.receive(), Incoming::Closed));
    }
}
