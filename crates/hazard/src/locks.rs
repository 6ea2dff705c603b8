//! The lock service of a play: our own, or Redlock.

use lockkeeper::machine::{CallId, CallKind};
use lockkeeper_core::ModeKind;

use crate::client::{Client, CountedHold, Sent};
use crate::redlock::Redlock;
use crate::service::LockService;
use crate::settings::{LockServiceKind, Settings};

/// The lock service.
pub(crate) enum PlayedLocks {
    Service(Box<LockService>),
    Redlock(Box<Redlock>),
}

impl PlayedLocks {
    pub(crate) fn new(settings: &Settings) -> Self {
        match settings.service {
            LockServiceKind::Lockkeeper => Self::Service(Box::new(LockService::new(settings))),
            LockServiceKind::Redlock => Self::Redlock(Box::new(Redlock::new(settings.ttl_ms))),
        }
    }

    pub(crate) fn call(
        &mut self,
        now: u64,
        client: Client,
        mode: ModeKind,
        call: (CallId, CallKind),
        out: &mut Vec<Sent>,
    ) {
        match self {
            Self::Service(service) => service.call(now, client, mode, call, out),
            Self::Redlock(redlock) => redlock.call(now, client, call, out),
        }
    }

    /// A client's process has died, and its system has closed the connection.
    pub(crate) fn disconnected(&mut self, now: u64, client: Client) {
        if let Self::Service(service) = self {
            service.disconnected(now, client);
        }
    }

    /// Sets the clocks of some servers forward. Our own service reads none.
    pub(crate) fn step_clocks(&mut self, ms: u64) {
        if let Self::Redlock(redlock) = self {
            redlock.step_clocks(ms);
        }
    }

    /// When the next timer is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        match self {
            Self::Service(service) => service.next_due(),
            Self::Redlock(redlock) => redlock.next_due(),
        }
    }

    /// Fires the timers that are due. Returns the clients whose sessions have expired.
    pub(crate) fn fire(&mut self, now: u64, out: &mut Vec<Sent>) -> Vec<Client> {
        match self {
            Self::Service(service) => service.fire(now, out),
            Self::Redlock(redlock) => {
                redlock.fire(now, out);
                Vec::new()
            }
        }
    }

    /// The holds that exclude others now.
    pub(crate) fn held(&self, now: u64) -> Vec<CountedHold> {
        match self {
            Self::Service(service) => service.held(),
            Self::Redlock(redlock) => redlock.held(now),
        }
    }
}
