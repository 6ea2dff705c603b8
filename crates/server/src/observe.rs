//! Metrics, through the `metrics` facade. Names are listed in `docs/metrics.md`.

use std::time::Duration;

/// A record of the log is durable.
pub(crate) fn synced(took: Duration) {
    metrics::histogram!("lockkeeper_log_sync_seconds").record(took.as_secs_f64());
}

/// A turn handled this many requests, and took so long, the log's sync included.
pub(crate) fn turn(requests: usize, took: Duration) {
    metrics::histogram!("lockkeeper_turn_seconds").record(took.as_secs_f64());
    metrics::counter!("lockkeeper_requests_total").increment(requests as u64);
    metrics::histogram!("lockkeeper_turn_requests").record(requests as f64);
}

/// The replica's thread was at a step of a snapshot for so long.
pub(crate) fn snapshot_step(took: Duration) {
    metrics::histogram!("lockkeeper_snapshot_step_seconds").record(took.as_secs_f64());
}

/// A snapshot is whole and durable.
pub(crate) fn snapshot(took: Duration, bytes: u64) {
    metrics::histogram!("lockkeeper_snapshot_seconds").record(took.as_secs_f64());
    metrics::histogram!("lockkeeper_snapshot_bytes").record(bytes as f64);
}

/// Another node's table differs from this node's.
pub(crate) fn differs() {
    metrics::counter!("lockkeeper_tables_differ_total").increment(1);
}

/// So many are open.
pub(crate) fn streams(open: usize) {
    metrics::gauge!("lockkeeper_streams").set(open as f64);
}

/// So many are open.
pub(crate) fn connections(open: usize) {
    metrics::gauge!("lockkeeper_connections").set(open as f64);
}

/// A stream was ended for what its client did.
pub(crate) fn stream_refused(reason: &'static str) {
    metrics::counter!("lockkeeper_streams_refused_total", "reason" => reason).increment(1);
}
