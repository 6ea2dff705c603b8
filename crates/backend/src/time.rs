//! The clock of leases. It keeps counting during suspend, and only its rate is trusted (P5).

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

/// A moment on this host's `CLOCK_BOOTTIME` (macOS: `CLOCK_MONOTONIC_RAW`), in nanoseconds since boot.
///
/// Unlike [`std::time::Instant`] it keeps counting during suspend: after an hour of suspend a client sees
/// that its lease has ended. Comparable between processes of one host until it reboots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// Later than every deadline.
    pub const MAX: Self = Self(u64::MAX);

    /// The present moment.
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
        // Every supported kernel has this clock, so reading it cannot fail.
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

    /// `self + duration`; `None` on overflow.
    #[must_use]
    pub fn checked_add(self, duration: Duration) -> Option<Self> {
        u64::try_from(duration.as_nanos()).ok().and_then(|nanos| self.0.checked_add(nanos)).map(Self)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;
    /// Saturates at [`BootInstant::MAX`].
    fn add(self, duration: Duration) -> Self {
        self.checked_add(duration).unwrap_or(Self::MAX)
    }
}

impl Sub for BootInstant {
    type Output = Duration;
    /// The time since `earlier`; zero if `earlier` is later.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot+{:?}", Duration::from_nanos(self.0))
    }
}

/// The source of time: the system clock, or a test's clock.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// This host's boot clock.
    #[default]
    Boot,
    /// A test's clock.
    Virtual(VirtualClock),
}

impl Clock {
    /// The present time.
    #[must_use]
    pub fn now(&self) -> BootInstant {
        match self {
            Self::Boot => BootInstant::now(),
            Self::Virtual(clock) => clock.now(),
        }
    }

    /// An alarm on this clock, initially not set.
    pub fn alarm(&self) -> Arc<Alarm> {
        let alarm = Arc::new(Alarm {
            clock: self.clone(),
            at: AtomicU64::new(u64::MAX),
            armed: AtomicU64::new(u64::MAX),
            running: AtomicBool::new(true),
            changed: Notify::new(),
        });
        if let Self::Virtual(clock) = self {
            clock.state().alarms.push(Arc::downgrade(&alarm));
        }
        alarm
    }
}

/// The single timer of a loop. The loop sets it, waits for it, processes what is due, and repeats.
#[derive(Debug)]
pub struct Alarm {
    clock: Clock,
    at: AtomicU64,
    /// The time until which the waiting loop sleeps. It may be earlier than `at`: the loop then goes on
    /// sleeping.
    armed: AtomicU64,
    /// For the virtual clock: whether the loop is processing, and not waiting for the alarm. Time does not
    /// advance meanwhile.
    running: AtomicBool,
    changed: Notify,
}

impl Alarm {
    /// Sets the alarm to ring at `at` or slightly later; `None` disables it. Callable from any thread. Wakes
    /// the waiting loop only if that would sleep for too long: most calls are answered long before their time
    /// limit, which is set and taken back thousands of times a second.
    pub fn set(&self, at: Option<BootInstant>) {
        let at = at.map_or(u64::MAX, BootInstant::as_nanos);
        self.at.store(at, Ordering::SeqCst);
        if at < self.armed.load(Ordering::SeqCst) {
            self.changed.notify_one();
        }
    }

    /// Waits until the alarm rings, and sets `running`. Needs a tokio runtime with I/O and time enabled.
    pub async fn ring(&self) {
        loop {
            let at = BootInstant(self.at.load(Ordering::SeqCst));
            if self.clock.now() >= at {
                return self.running.store(true, Ordering::SeqCst);
            }
            self.armed.store(at.0, Ordering::SeqCst);
            // `set` on another thread either finds the new `armed`, or has set `at` before this check.
            if self.at.load(Ordering::SeqCst) < at.0 {
                continue;
            }
            match &self.clock {
                Clock::Boot => tokio::select! {
                    () = boot_sleep_until(at) => {}
                    () = self.changed.notified() => {}
                },
                Clock::Virtual(clock) => {
                    self.running.store(false, Ordering::SeqCst);
                    clock.0.turned.notify_all();
                    self.changed.notified().await;
                }
            }
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Clock::Virtual(clock) = &self.clock {
            clock.0.turned.notify_all();
        }
    }
}

/// A clock controlled by a test. Cheap to clone; clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<Virtual>);

#[derive(Debug, Default)]
struct Virtual {
    state: Mutex<VirtualState>,
    turned: Condvar,
}

#[derive(Debug, Default)]
struct VirtualState {
    now: u64,
    alarms: Vec<Weak<Alarm>>,
}

impl VirtualClock {
    /// The present time of this clock.
    #[must_use]
    pub fn now(&self) -> BootInstant {
        BootInstant(self.state().now)
    }

    /// Advances the clock and fires all timers that are due until the new time, in order of time. Returns
    /// when their loops wait again; has no time limit.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.state();
        let target = (BootInstant(state.now) + duration).0;
        loop {
            state.alarms.retain(|alarm| alarm.strong_count() > 0);
            let alarms: Vec<Arc<Alarm>> = state.alarms.iter().filter_map(Weak::upgrade).collect();
            if alarms.iter().any(|alarm| alarm.running.load(Ordering::SeqCst)) {
                // Dropped before the wait: an alarm whose loop has ended must not be kept alive by this list.
                drop(alarms);
                let (again, waited) = self
                    .0
                    .turned
                    .wait_timeout(state, Duration::from_millis(1))
                    .unwrap_or_else(PoisonError::into_inner);
                state = again;
                let _ = waited;
                continue;
            }
            let next = alarms.iter().min_by_key(|alarm| alarm.at.load(Ordering::SeqCst));
            match next {
                Some(alarm) if alarm.at.load(Ordering::SeqCst) <= target => {
                    state.now = state.now.max(alarm.at.load(Ordering::SeqCst));
                    alarm.running.store(true, Ordering::SeqCst);
                    alarm.changed.notify_one();
                }
                _ => {
                    state.now = target;
                    return;
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, VirtualState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A timer is armed for at most this long, then the clock is read again: the clock may jump while the timer
/// runs (a suspend that the kernel's timer missed, a clock that a test replaces).
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

/// Waits once on a timerfd of the same clock: tokio's own timers do not count suspend.
#[cfg(target_os = "linux")]
async fn step(wait: Duration) {
    use std::os::fd::OwnedFd;

    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
    use tokio::io::Interest;

    let armed = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)
        .and_then(|timer| {
            let expiration = Expiration::OneShot(TimeSpec::from_duration(wait.max(Duration::from_nanos(1))));
            timer.set(expiration, TimerSetTimeFlags::empty())?;
            Ok(timer)
        });
    let timer =
        armed.ok().and_then(|timer| crate::io::fd::watch(OwnedFd::from(timer), Interest::READABLE).ok());
    match timer {
        Some(timer) => drop(timer.readable().await),
        // Out of descriptors: a short sleep before the clock is read again, so that no deadline is missed by
        // much.
        None => tokio::time::sleep(wait.min(Duration::from_millis(10))).await,
    }
}

/// Short sleeps on tokio's timers; the clock is read after each.
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
        let alarm = Clock::Boot.alarm();
        alarm.set(Some(at));
        alarm.ring().await;
        assert!(BootInstant::now() >= at);
    }

    #[derive(Default)]
    struct Wakes(std::sync::atomic::AtomicUsize);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn only_a_time_before_the_end_of_its_sleep_wakes_the_loop() {
        let (alarm, wakes) = (Clock::Boot.alarm(), Arc::new(Wakes::default()));
        let after = |seconds| Some(BootInstant::now() + Duration::from_secs(seconds));
        alarm.set(after(60));
        let mut ringing = std::pin::pin!(alarm.ring());
        let waker = wakes.clone().into();
        let mut look =
            || assert!(ringing.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        look();
        for _ in 0..1000 {
            alarm.set(None);
            alarm.set(after(70));
        }
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
        alarm.set(after(50));
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        look();
        alarm.set(after(55));
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_virtual_clock_advances_only_when_advanced() {
        let clock = VirtualClock::default();
        let alarm = Clock::Virtual(clock.clone()).alarm();
        let rung = Arc::new(Mutex::new(Vec::new()));
        let looping = std::thread::spawn({
            let (alarm, rung, clock) = (alarm.clone(), rung.clone(), clock.clone());
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    for second in [1, 2, 5] {
                        alarm.set(Some(BootInstant::from_nanos(second * 1_000_000_000)));
                        alarm.ring().await;
                        rung.lock().unwrap().push((second, clock.now().as_nanos() / 1_000_000_000));
                    }
                    alarm.running.store(false, Ordering::SeqCst);
                    alarm.set(None);
                });
            }
        });
        clock.advance(Duration::from_secs(4));
        assert_eq!(*rung.lock().unwrap(), [(1, 1), (2, 2)], "each at its own time, none early");
        clock.advance(Duration::from_secs(4));
        looping.join().unwrap();
        assert_eq!(*rung.lock().unwrap(), [(1, 1), (2, 2), (5, 5)]);
    }

    #[test]
    fn boot_instant_arithmetic_saturates() {
        assert_eq!(BootInstant::MAX + Duration::from_secs(1), BootInstant::MAX);
        assert_eq!(BootInstant::from_nanos(1) - BootInstant::from_nanos(2), Duration::ZERO);
    }
}
