//! Metrics, through the `metrics` facade. Names are listed in `docs/metrics.md`.

use std::time::Duration;

/// A log record was made durable.
pub(crate) fn synced(took: Duration) {
    metrics::histogram!("lockkeeper_log_sync_seconds").record(took.as_secs_f64());
}

/// A turn handled this many requests and took this long, the log's sync included.
pub(crate) fn turn(requests: usize, took: Duration) {
    metrics::histogram!("lockkeeper_turn_seconds").record(took.as_secs_f64());
    metrics::counter!("lockkeeper_requests_total").increment(requests as u64);
    metrics::histogram!("lockkeeper_turn_requests").record(requests as f64);
}

/// The replica's thread spent this long on one step of a snapshot.
pub(crate) fn snapshot_step(took: Duration) {
    metrics::histogram!("lockkeeper_snapshot_step_seconds").record(took.as_secs_f64());
}

/// A snapshot is complete and durable.
pub(crate) fn snapshot(took: Duration, bytes: u64) {
    metrics::histogram!("lockkeeper_snapshot_seconds").record(took.as_secs_f64());
    metrics::histogram!("lockkeeper_snapshot_bytes").record(bytes as f64);
}

/// Another node's table differs from this node's.
pub(crate) fn differs() {
    metrics::counter!("lockkeeper_tables_differ_total").increment(1);
}

/// The number of open streams.
pub(crate) fn streams(open: usize) {
    metrics::gauge!("lockkeeper_streams").set(open as f64);
}

/// The number of open client connections.
pub(crate) fn connections(open: usize) {
    metrics::gauge!("lockkeeper_connections").set(open as f64);
}

/// A stream was ended because of its client's behaviour.
pub(crate) fn stream_refused(reason: &'static str) {
    metrics::counter!("lockkeeper_streams_refused_total", "reason" => reason).increment(1);
}
