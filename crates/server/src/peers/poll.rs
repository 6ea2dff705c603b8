//! The wait of the replica's thread on a node with peers: for sockets, for the inbox, and for the time of the
//! next turn.
//!
//! Responsible for: no wake-up is lost, and ringing a thread that isn't asleep costs no system call.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

/// The bell's token; links are numbered from 1.
const BELL: Token = Token(0);
/// Most events of one poll, more than there are peer sockets; another poll would return the rest.
const EVENTS: usize = 64;

/// The thread is running, and checks all its inputs before it sleeps.
const AWAKE: u8 = 0;
/// The thread waits, or is about to.
const ASLEEP: u8 = 1;
/// An input has arrived.
const RUNG: u8 = 2;

/// Wakes the replica's thread when it sleeps in a poll.
#[derive(Debug)]
pub(crate) struct Bell {
    state: AtomicU8,
    waker: Waker,
}

impl Bell {
    /// Makes the thread check its inbox before it sleeps again; wakes it if it sleeps.
    pub(crate) fn ring(&self) {
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            // Fails only if the kernel is out of memory; then the thread finds the input when its next timer
            // is due.
            let _ = self.waker.wake();
        }
    }
}

/// Polls the peers' sockets and the bell.
pub(super) struct Poller {
    poll: Poll,
    events: Events,
    bell: Arc<Bell>,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), BELL)?;
        let bell = Arc::new(Bell { state: AtomicU8::new(AWAKE), waker });
        Ok(Self { poll, events: Events::with_capacity(EVENTS), bell })
    }

    pub(super) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// Registers a socket: its events are reported with this number, once per change (edge-triggered).
    pub(super) fn add(&self, socket: &mut TcpStream, number: usize) -> io::Result<()> {
        self.poll.registry().register(socket, Token(number), Interest::READABLE | Interest::WRITABLE)
    }

    pub(super) fn remove(&self, socket: &mut TcpStream) {
        // Fails only for a socket that was never added.
        let _ = self.poll.registry().deregister(socket);
    }

    /// Sleeps until an event, or for `at_most`. Does not sleep if the bell was rung since the last call, or
    /// if `is_idle` returns false; `is_idle` is called last, so no input is missed. Returns whether the
    /// sockets were polled.
    pub(super) fn sleep(&mut self, at_most: Option<Duration>, is_idle: impl FnOnce() -> bool) -> bool {
        let awake = self.bell.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        let may_sleep = awake.is_ok() && is_idle();
        if may_sleep {
            self.poll(at_most);
        }
        self.bell.state.store(AWAKE, Ordering::Release);
        may_sleep
    }

    /// Polls the sockets and the bell, and waits up to `at_most` for an event.
    pub(super) fn poll(&mut self, at_most: Option<Duration>) {
        if let Err(error) = self.poll.poll(&mut self.events, at_most) {
            self.events.clear();
            if error.kind() != io::ErrorKind::Interrupted {
                tracing::error!(%error, "waiting for peers failed: {error}");
            }
        }
    }

    /// The socket events of the last poll, by number.
    pub(super) fn found(&self) -> impl Iterator<Item = (usize, &Event)> {
        self.events.iter().filter(|event| event.token() != BELL).map(|event| (event.token().0, event))
    }
}
