//! The recorder of a node's metrics.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_server::MetricsPage;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};

use crate::exit::{Failure, INTERNAL};

/// Upper bounds of durations, in seconds: from a write to a fast disk up to stalls that end leaderships.
const SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];
/// Upper bounds of waits for a lock, in seconds: up to a day.
const WAITS: [f64; 13] =
    [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0];
/// Upper bounds of the parts of a ttl.
const RATIOS: [f64; 9] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
/// Upper bounds of the requests of a batch.
const REQUESTS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
/// Upper bounds of sizes, in bytes.
const BYTES: [f64; 8] = [1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 2e9, 4e9];
/// How often recorded values are aggregated; each takes memory until then.
const UPKEEP: Duration = Duration::from_secs(5);

/// Installs this process's recorder, which the page reads.
pub(super) fn page(prefix_segments: usize) -> Result<MetricsPage, Failure> {
    let failure = |error: String| Failure::new(INTERNAL, format!("metrics can't be recorded: {error}"));
    let handle = builder()
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| failure(error.to_string()))?;
    let upkeep = handle.clone();
    std::thread::Builder::new()
        .name("lockkeeper-metrics".to_owned())
        .spawn(move || {
            loop {
                std::thread::sleep(UPKEEP);
                upkeep.run_upkeep();
            }
        })
        .map_err(|error| failure(error.to_string()))?;
    Ok(MetricsPage { render: Arc::new(move || handle.render()), prefix_segments })
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    let suffix = |suffix: &str| Matcher::Suffix(suffix.to_owned());
    PrometheusBuilder::new()
        .set_buckets_for_metric(suffix("_seconds"), &SECONDS)?
        .set_buckets_for_metric(Matcher::Full("lockkeeper_queue_wait_seconds".to_owned()), &WAITS)?
        .set_buckets_for_metric(suffix("_ratio"), &RATIOS)?
        .set_buckets_for_metric(suffix("_requests"), &REQUESTS)?
        .set_buckets_for_metric(suffix("_bytes"), &BYTES)
}
