//! What a worker itself writes down of its holds, where a planted mistake spoils the library's history.
//!
//! Responsible for true times: a worker whose lease clock is wrong says by a right clock what it counted on.

use std::time::{Duration, Instant};

use lockkeeper::{BootInstant, Guard, Token};
use lockkeeper_history::{EndedEvent, GrantedEvent, HistoryEvent, HistoryWriter, HoldEnd, HoldMode};

use crate::mutant::ChaosMutant;

/// How often a worker checks that it still holds.
const POLL: Duration = Duration::from_millis(2);

/// `CLOCK_BOOTTIME`, or that of the process's start and `CLOCK_MONOTONIC` since then, which no fault changes.
#[derive(Clone, Copy)]
pub(crate) enum WorkerClock {
    Boot,
    Monotonic { began: u64, at: Instant },
}

impl WorkerClock {
    pub(crate) fn new(mutant: Option<ChaosMutant>) -> Self {
        match mutant {
            Some(ChaosMutant::SlowWorkerClock) => {
                Self::Monotonic { began: BootInstant::now().as_nanos(), at: Instant::now() }
            }
            _ => Self::Boot,
        }
    }

    /// Nanoseconds since the host's boot.
    pub(crate) fn now(self) -> u64 {
        match self {
            Self::Boot => BootInstant::now().as_nanos(),
            Self::Monotonic { began, at } => {
                began + u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The holds that a worker counts on.
#[derive(Clone)]
pub(crate) struct Claims {
    pub(crate) history: HistoryWriter,
    pub(crate) clock: WorkerClock,
    pub(crate) service: String,
    /// It counts on a hold until its section ends; otherwise as long as the library says so.
    pub(crate) is_deaf: bool,
}

impl Claims {
    /// Does `work` under a hold that was asked for at `asked`, and writes down for how long it counted on it.
    pub(crate) async fn during(
        &self,
        lock: &str,
        (guard, token): (&Guard, Token),
        asked: u64,
        work: impl Future<Output = ()>,
    ) {
        let mut until = self.clock.now();
        if guard.loss().is_some() {
            return;
        }
        let hold = self.history.next_hold();
        let granted = GrantedEvent {
            hold,
            service: self.service.clone(),
            locks: vec![lock.to_owned()],
            subtree: false,
            mode: HoldMode::Exclusive,
            slots: Vec::new(),
            token: Some(token.get()),
            cached: false,
            asked,
            queued: None,
        };
        self.history.write(until, HistoryEvent::Granted(granted));
        tokio::pin!(work);
        loop {
            tokio::select! {
                () = &mut work => break,
                () = tokio::time::sleep(POLL) => {}
            }
            let now = self.clock.now();
            if guard.loss().is_none() {
                until = now;
            }
        }
        let now = self.clock.now();
        if self.is_deaf {
            until = now;
        }
        self.history.write(now, HistoryEvent::Ended(EndedEvent { hold, until, how: HoldEnd::Released }));
    }
}
