//! What the replica's thread waits for when it has peers: their sockets, its inbox, its next turn.
//!
//! Responsible for: no wake-up is lost, and ringing a thread that isn't asleep costs no system call.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

/// The bell's; links are numbered from 1.
const BELL: Token = Token(0);
/// More sockets than there are peers are never ready at once; a second look would find the rest.
const EVENTS: usize = 64;

/// The thread is at work, and looks at everything before it sleeps.
const AWAKE: u8 = 0;
/// It waits, or is about to.
const ASLEEP: u8 = 1;
/// Somebody has something for it.
const RUNG: u8 = 2;

/// Wakes the replica's thread out of its wait.
#[derive(Debug)]
pub(crate) struct Bell {
    state: AtomicU8,
    waker: Waker,
}

impl Bell {
    /// It looks at its inbox before it sleeps again, or wakes up for it.
    pub(crate) fn ring(&self) {
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            // Fails only if the system has no memory for eight bytes. The next tick finds what waits then.
            let _ = self.waker.wake();
        }
    }
}

/// The sockets, and the bell.
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

    /// From here on, what happens to the socket is told under this number, once per change.
    pub(super) fn add(&self, socket: &mut TcpStream, number: usize) -> io::Result<()> {
        self.poll.registry().register(socket, Token(number), Interest::READABLE | Interest::WRITABLE)
    }

    pub(super) fn remove(&self, socket: &mut TcpStream) {
        // Fails only for one that was never added.
        let _ = self.poll.registry().deregister(socket);
    }

    /// Sleeps until something happens, or so long; not at all if `is_idle`, asked last, says that there is work. Whether it
    /// has looked at the sockets.
    pub(super) fn sleep(&mut self, at_most: Option<Duration>, is_idle: impl FnOnce() -> bool) -> bool {
        let awake = self.bell.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        let may_sleep = awake.is_ok() && is_idle();
        if may_sleep {
            self.look(at_most);
        }
        self.bell.state.store(AWAKE, Ordering::Release);
        may_sleep
    }

    /// Looks at the sockets, and waits for them so long.
    pub(super) fn look(&mut self, at_most: Option<Duration>) {
        if let Err(error) = self.poll.poll(&mut self.events, at_most) {
            self.events.clear();
            if error.kind() != io::ErrorKind::Interrupted {
                tracing::error!(%error, "waiting for peers failed: {error}");
            }
        }
    }

    /// What the last look has found, by number.
    pub(super) fn found(&self) -> impl Iterator<Item = (usize, &Event)> {
        self.events.iter().filter(|event| event.token() != BELL).map(|event| (event.token().0, event))
    }
}
