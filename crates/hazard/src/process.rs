//! A client's process: the production state machine of a session, the process's clock, and the program that
//! uses the lock.

use std::collections::VecDeque;
use std::time::Duration;

use lockkeeper::machine::{AcquireLimits, Event, Key, Machine, Spec};
use lockkeeper::{BootInstant, LossCause};
use lockkeeper_core::{ModeKind, Token};
use lockkeeper_fence::Section;

use crate::client::Client;
use crate::resource::BalanceRead;
use crate::settings::Settings;

/// The reading of a process's clock at the start, in nanoseconds.
const CLOCK_START: u64 = 1_000_000_000_000;

/// A process.
pub(crate) struct Process {
    pub(crate) client: Client,
    pub(crate) mode: ModeKind,
    /// The amount that the program withdraws.
    pub(crate) amount: i64,
    pub(crate) machine: Machine,
    pub(crate) clock: Clock,
    /// The key of the current request in `machine`.
    pub(crate) key: Key,
    pub(crate) state: ProgramState,
    pub(crate) hold: Option<KnownHold>,
    /// The session's lease deadline, on the process's clock.
    pub(crate) lease_deadline: Option<BootInstant>,
    /// The end of the current pause of the process.
    pub(crate) paused_until: Option<u64>,
    /// The messages that arrived during the pause.
    pub(crate) inbox: VecDeque<Arrival>,
    /// Whether the first write was sent; a story may delay that write.
    pub(crate) has_written: bool,
    /// Whether the process was paused before.
    pub(crate) has_paused: bool,
    /// The time of the next timer of `machine`.
    pub(crate) wake_ms: Option<u64>,
}

/// The step that a program is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgramState {
    NotStarted,
    /// Waiting for the lock.
    Acquiring,
    /// Waiting for the balance.
    Reading,
    Working(BalanceRead),
    /// A reader, waiting for the balance a second time.
    ReadingAgain(BalanceRead),
    /// Waiting for the answer to the write.
    Writing,
    Releasing,
    Finished,
    Dead,
}

/// A hold, as the program sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownHold {
    pub(crate) token: Option<Token>,
    /// Why the hold has ended, once the client library has learned it.
    pub(crate) lost: Option<LossCause>,
}

/// A message that arrives at a process.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// From the lock service, for `machine`.
    FromLocks(Event),
    /// From the resource, for the program.
    FromResource(ResourceAnswer),
}

/// The resource's answer to a program.
#[derive(Clone, Debug)]
pub(crate) enum ResourceAnswer {
    Balance(BalanceRead),
    Written,
    /// The fence has refused the section.
    Refused,
}

impl Process {
    pub(crate) fn new(client: Client, mode: ModeKind, amount: i64, settings: &Settings) -> Self {
        let spec = Spec {
            ttl: Some(Duration::from_millis(settings.ttl_ms)),
            lock_delay: Duration::from_millis(settings.lock_delay_ms),
            linger: Duration::from_millis(settings.linger_ms),
            renew: true,
        };
        let drift_percent = if client == Client::A { settings.drift_percent } else { 0 };
        Self {
            client,
            mode,
            amount,
            machine: Machine::new(spec),
            clock: Clock { drift_percent },
            key: Key(0),
            state: ProgramState::NotStarted,
            hold: None,
            lease_deadline: None,
            paused_until: None,
            inbox: VecDeque::new(),
            has_written: false,
            has_paused: false,
            wake_ms: None,
        }
    }

    /// The program's next request, which waits for the lock without a limit.
    pub(crate) fn next_request(&mut self) -> Event {
        self.key = Key(self.key.0 + 1);
        self.state = ProgramState::Acquiring;
        self.hold = None;
        let limits = AcquireLimits {
            wait_until: None,
            patience: None,
            min_validity: Duration::ZERO,
            max_hold: None,
            grace: Duration::ZERO,
        };
        Event::Acquire { key: self.key, limits }
    }

    /// The section that the program sends to the fence; `None` without a token.
    pub(crate) fn section(&self) -> Option<Section> {
        let token = self.hold?.token?;
        Some(if self.mode == ModeKind::Shared { Section::shared(token) } else { Section::exclusive(token) })
    }

    /// As `Guard::check`: the process has not learned of an end of the hold, and the lease is valid by the
    /// process's own clock.
    pub(crate) fn is_valid(&self, now_ms: u64) -> bool {
        let is_held = self.hold.is_some_and(|hold| hold.lost.is_none());
        is_held && self.lease_deadline.is_some_and(|until| self.clock.at(now_ms) < until)
    }

    pub(crate) fn token(&self) -> Option<u64> {
        self.hold?.token.map(Token::get)
    }

    /// Whether the process sends nothing any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, ProgramState::Finished | ProgramState::Dead)
    }
}

/// The clock of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    drift_percent: i64,
}

impl Clock {
    fn rate(self) -> u64 {
        100u64.saturating_add_signed(self.drift_percent)
    }

    /// The reading of this clock at a time of the story, in milliseconds.
    pub(crate) fn at(self, ms: u64) -> BootInstant {
        BootInstant::from_nanos(CLOCK_START + ms * 10_000 * self.rate())
    }

    /// The first millisecond of the story at which this clock shows `instant` or later.
    pub(crate) fn time_of(self, instant: BootInstant) -> u64 {
        instant.as_nanos().saturating_sub(CLOCK_START).div_ceil(10_000 * self.rate())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_drifts_is_read_and_inverted_exactly() {
        for drift_percent in [-50, -3, 0, 7, 50] {
            let clock = Clock { drift_percent };
            for ms in [0, 1, 999, 30_000] {
                assert_eq!(clock.time_of(clock.at(ms)), ms);
            }
        }
        let slow = Clock { drift_percent: -50 };
        assert_eq!(slow.at(10_000) - slow.at(0), Duration::from_secs(5));
    }
}
