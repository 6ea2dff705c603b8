//! The clock that a replica is driven by: it counts suspend, and only its rate is trusted (P5).

use std::time::Duration;

#[cfg(target_os = "linux")]
const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_BOOTTIME;
#[cfg(target_os = "macos")]
const CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_MONOTONIC_RAW;

/// Now, since boot.
pub(crate) fn now() -> Duration {
    // Asking a clock that every supported kernel has can't fail; 0 would only be taken as "no time has passed".
    CLOCK.now().map_or(Duration::ZERO, Duration::from)
}
