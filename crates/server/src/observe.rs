//! Metrics, through the `metrics` facade. Names are listed in `docs/metrics.md`.

use std::time::Duration;

/// Records the duration of a write and sync of the log.
pub(crate) fn synced(took: Duration) {
    metrics::histogram!("lockkeeper_log_sync_seconds").record(took.as_secs_f64());
}

/// Records a turn: its number of requests, and its duration including the log's sync.
pub(crate) fn turn(requests: usize, took: Duration) {
    metrics::histogram!("lockkeeper_turn_seconds").record(took.as_secs_f64());
    metrics::counter!("lockkeeper_requests_total").increment(requests as u64);
    metrics::histogram!("lockkeeper_turn_requests").record(requests as f64);
}

/// Records the time that one step of a snapshot took on the replica's thread.
pub(crate) fn snapshot_step(took: Duration) {
    metrics::histogram!("lockkeeper_snapshot_step_seconds").record(took.as_secs_f64());
}

/// Records a complete, durable snapshot: how long it took, and its size.
pub(crate) fn snapshot(took: Duration, bytes: u64) {
    metrics::histogram!("lockkeeper_snapshot_seconds").record(took.as_secs_f64());
    metrics::histogram!("lockkeeper_snapshot_bytes").record(bytes as f64);
}

/// Counts a difference between this node's table and another node's.
pub(crate) fn differs() {
    metrics::counter!("lockkeeper_tables_differ_total").increment(1);
}

/// Sets the number of open streams.
pub(crate) fn streams(open: usize) {
    metrics::gauge!("lockkeeper_streams").set(open as f64);
}

/// Sets the number of open client connections.
pub(crate) fn connections(open: usize) {
    metrics::gauge!("lockkeeper_connections").set(open as f64);
}

/// Counts a stream that was ended because of its client's behaviour.
pub(crate) fn stream_refused(reason: &'static str) {
    metrics::counter!("lockkeeper_streams_refused_total", "reason" => reason).increment(1);
}

/// Counts what was refused at a quota.
pub(crate) fn quota_refused(what: &'static str) {
    metrics::counter!("lockkeeper_quota_refusals_total", "what" => what).increment(1);
}

/// Reports the state of this process to systemd, if that has started it.
pub(crate) fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager could not be told: {error}");
    }
}
