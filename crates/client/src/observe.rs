//! Metrics, through the `metrics` facade: outcomes and durations. Names are listed in `docs/metrics.md`.

use std::time::Duration;

use lockkeeper_core::LockName;

use crate::error::LossCause;

pub(crate) fn acquired(backend: &'static str, outcome: &'static str, waited: Duration) {
    metrics::counter!("lockkeeper_acquires_total", "backend" => backend, "outcome" => outcome).increment(1);
    metrics::histogram!("lockkeeper_wait_seconds", "backend" => backend).record(waited.as_secs_f64());
}

pub(crate) fn released(backend: &'static str, held: Duration) {
    metrics::histogram!("lockkeeper_hold_seconds", "backend" => backend).record(held.as_secs_f64());
}

pub(crate) fn lost(backend: &'static str, names: &[LockName], cause: LossCause) {
    metrics::counter!("lockkeeper_lost_total", "backend" => backend, "cause" => cause.as_str()).increment(1);
    let names = names.iter().map(LockName::as_str).collect::<Vec<_>>().join(", ");
    tracing::warn!(backend, cause = cause.as_str(), "the lock `{names}` was lost: {cause}");
}

#[cfg(feature = "service")]
pub(crate) fn stream_ended(cause: &'static str) {
    metrics::counter!("lockkeeper_stream_ends_total", "cause" => cause).increment(1);
}
