//! The clock that drives a replica: it counts suspend, and only its rate is trusted (P5).

use std::time::{Duration, SystemTime};

use lockkeeper_core::WallTime;

#[cfg(target_os = "linux")]
const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_BOOTTIME;
#[cfg(target_os = "macos")]
const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_MONOTONIC_RAW;

/// The time since boot.
pub(crate) fn now() -> Duration {
    // Can't fail: every supported kernel has this clock. If it did, the replica would take zero as "no time
    // has passed", since its time never goes back.
    CLOCK.now().map_or(Duration::ZERO, Duration::from)
}

/// The wall clock, which only people read (E3).
pub(crate) fn wall() -> WallTime {
    SystemTime::now().into()
}
