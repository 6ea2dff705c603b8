//! The pauses between attempts.

use std::time::Duration;

/// The first pause before a retry.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(20);
/// The longest pause before a retry.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(1);
/// The pause after `tries` failed attempts.
pub(super) fn pause(tries: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << tries.min(16)).min(RETRY_MAX)
}
