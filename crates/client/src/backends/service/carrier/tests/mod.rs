//! Tests of the carrier alone: no clock, no network, no runtime.

mod named;
pub(in crate::backends::service) mod peer;
mod world;

use std::time::Duration;

use super::*;

pub(super) const TTL: Duration = Duration::from_secs(12);

pub(super) fn spec() -> Spec {
    Spec { ttl: Some(TTL), lock_delay: Duration::ZERO, linger: Duration::ZERO, renew: true }
}

pub(super) fn at(secs: u64) -> BootInstant {
    BootInstant::from_nanos(secs * 1_000_000_000)
}
