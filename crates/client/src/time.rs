//! The only clock that leases are measured on: it counts suspend, and only its rate is trusted (P5).

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// A moment on this host's `CLOCK_BOOTTIME` (macOS: `CLOCK_MONOTONIC_RAW`), in nanoseconds since boot.
///
/// Unlike [`std::time::Instant`] it goes on while the machine sleeps, so a laptop that was closed for an hour knows
/// that its lease is over. Comparable between processes of one host until it reboots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Later than anything that is waited for.
    pub const MAX: Self = Self(u64::MAX);

    /// Now.
    #[must_use]
    pub fn now() -> Self {
        #[cfg(target_os = "linux")]
        const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_BOOTTIME;
        #[cfg(target_os = "macos")]
        const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_MONOTONIC_RAW;
        #[cfg(not(any(target_os = "linux", target_os = "macos")))]
        compile_error!(
            "Lockkeeper's leases need a clock that counts suspend; none is known for this system (P5)"
        );
        // Asking a clock that every supported kernel has can't fail; 0 would only end leases early.
        let now = CLOCK.now().map_or(Duration::ZERO, Duration::from);
        Self::from_nanos(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
    }

    /// From nanoseconds since boot.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `None` beyond what the clock can count.
    #[must_use]
    pub fn checked_add(self, duration: Duration) -> Option<Self> {
        u64::try_from(duration.as_nanos()).ok().and_then(|nanos| self.0.checked_add(nanos)).map(Self)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;
    /// Stops at [`BootInstant::MAX`].
    fn add(self, duration: Duration) -> Self {
        self.checked_add(duration).unwrap_or(Self::MAX)
    }
}

impl Sub for BootInstant {
    type Output = Duration;
    /// How long after `earlier`; zero if it isn't.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot+{:?}", Duration::from_nanos(self.0))
    }
}

/// Where time comes from: the machine, or a test.
#[derive(Clone, Debug, Default)]
pub(crate) enum Clock {
    #[default]
    Boot,
    Virtual(VirtualClock),
}

impl Clock {
    pub(crate) fn now(&self) -> BootInstant {
        match self {
            Self::Boot => BootInstant::now(),
            Self::Virtual(clock) => clock.now(),
        }
    }

    /// Returns at `at` or a little later; never early. Needs a tokio runtime with I/O and time enabled.
    pub(crate) async fn sleep_until(&self, at: BootInstant) {
        match self {
            Self::Boot => boot_sleep_until(at).await,
            Self::Virtual(clock) => clock.sleep_until(at).await,
        }
    }
}

/// A clock that a test moves. Cheap to clone; clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<Virtual>);

#[derive(Debug, Default)]
struct Virtual {
    nanos: Mutex<u64>,
    moved: Notify,
}

impl VirtualClock {
    /// What this clock shows.
    #[must_use]
    pub fn now(&self) -> BootInstant {
        BootInstant(*self.nanos())
    }

    /// Moves it on.
    pub fn advance(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let mut now = self.nanos();
        *now = now.saturating_add(nanos);
        drop(now);
        self.0.moved.notify_waiters();
    }

    async fn sleep_until(&self, at: BootInstant) {
        loop {
            let moved = self.0.moved.notified();
            if self.now() >= at {
                return;
            }
            moved.await;
        }
    }

    fn nanos(&self) -> MutexGuard<'_, u64> {
        self.0.nanos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A timer is armed for at most this long, then the clock is read again: a clock may be moved under a timer (a
/// suspend that the kernel's timer missed, a test's shim).
const STEP: Duration = Duration::from_secs(1);

async fn boot_sleep_until(at: BootInstant) {
    loop {
        let now = BootInstant::now();
        if now >= at {
            return;
        }
        step((at - now).min(STEP)).await;
    }
}

/// One wait on a timerfd of the same clock: tokio's own timers stand still during suspend.
#[cfg(target_os = "linux")]
async fn step(wait: Duration) {
    use std::os::fd::OwnedFd;

    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    use tokio::io::unix::AsyncFd;

    let armed = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)
        .and_then(|timer| {
            let expiration = Expiration::OneShot(TimeSpec::from_duration(wait.max(Duration::from_nanos(1))));
            timer.set(expiration, TimerSetTimeFlags::empty())?;
            Ok(timer)
        });
    let timer = armed.map_err(std::io::Error::from).and_then(|timer| AsyncFd::new(OwnedFd::from(timer)));
    match timer {
        Ok(timer) => drop(timer.readable().await),
        // Out of descriptors: a short sleep, and the clock is read again, so that no deadline is missed by much.
        Err(_) => tokio::time::sleep(wait.min(Duration::from_millis(10))).await,
    }
}

/// Short sleeps on tokio's timers, with the clock read after each.
#[cfg(not(target_os = "linux"))]
async fn step(wait: Duration) {
    tokio::time::sleep(wait.min(Duration::from_millis(50))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleep_on_the_boot_clock_never_ends_early() {
        let at = BootInstant::now() + Duration::from_millis(30);
        Clock::Boot.sleep_until(at).await;
        assert!(BootInstant::now() >= at);
    }

    #[tokio::test]
    async fn a_virtual_clock_moves_only_when_it_is_told() {
        let clock = VirtualClock::default();
        let at = clock.now() + Duration::from_secs(3600);
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { Clock::Virtual(clock).sleep_until(at).await }
        });
        clock.advance(Duration::from_secs(3599));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        assert_eq!(BootInstant::MAX + Duration::from_secs(1), BootInstant::MAX);
        assert_eq!(BootInstant::from_nanos(1) - BootInstant::from_nanos(2), Duration::ZERO);
    }
}
