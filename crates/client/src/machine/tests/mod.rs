//! Tests of the machine: no clock, no runtime, and no service except the table in `table`.

mod checker;
mod exhaustive;
mod named;
mod table;

use std::time::Duration;

use lockkeeper_core::{End, Token};

use super::*;

pub(super) const TTL: Duration = Duration::from_secs(12);

pub(super) fn spec() -> Spec {
    Spec { ttl: Some(TTL), lock_delay: Duration::ZERO, linger: Duration::ZERO, renew: true }
}

pub(super) fn limits() -> AcquireLimits {
    AcquireLimits {
        wait_until: None,
        patience: None,
        min_validity: Duration::ZERO,
        max_hold: None,
        grace: Duration::from_secs(2),
    }
}

pub(super) fn at(secs: u64) -> BootInstant {
    BootInstant::from_nanos(secs * 1_000_000_000)
}

pub(super) fn granted(token: u64) -> Answer {
    Answer::Granted(Granted { token: Token::new(token), ..Granted::default() })
}
