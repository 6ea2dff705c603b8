//! The gate's metrics; docs/gate.md lists them.

use std::sync::OnceLock;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

const REQUESTS: &str = "lockkeeper_gate_requests_total";
const UNKNOWN_ENDS: &str = "lockkeeper_gate_unknown_ends_total";
const RESOURCES: &str = "lockkeeper_gate_resources_in_use";
const CONNECTIONS: &str = "lockkeeper_gate_connections";
const CONNECTIONS_REFUSED: &str = "lockkeeper_gate_connections_refused_total";
const IN_PROGRESS: &str = "lockkeeper_gate_requests_in_progress";
const MARKS: &str = "lockkeeper_gate_marks";
const ADMISSION: &str = "lockkeeper_gate_admission_seconds";

/// Upper bounds of the histogram, in seconds.
const BUCKETS: [f64; 12] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0];

/// The process's recorder, which is installed by the first call. If the process has another one, that one has
/// the metrics.
pub(crate) fn recorder() -> PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    let install = || {
        let builder = PrometheusBuilder::new();
        let builder = builder
            .set_buckets_for_metric(Matcher::Full(ADMISSION.to_owned()), &BUCKETS)
            .unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        let _ = metrics::set_global_recorder(recorder);
        describe();
        handle
    };
    RECORDER.get_or_init(install).clone()
}

fn describe() {
    describe_counter!(REQUESTS, "Requests, by outcome");
    describe_counter!(UNKNOWN_ENDS, "Guarded requests whose end at the upstream is unknown");
    describe_gauge!(RESOURCES, "Resources with a request that is inside, waits, or settles");
    describe_gauge!(CONNECTIONS, "Connections of clients");
    describe_counter!(CONNECTIONS_REFUSED, "Connections closed because their network has half of all");
    describe_gauge!(IN_PROGRESS, "Requests in progress");
    describe_gauge!(MARKS, "Marks that are kept: one for each resource, and one for each slot of permits");
    describe_histogram!(ADMISSION, "Time from a guarded request's headers until it is forwarded");
}

/// A request's outcome: `guarded`, `open`, `entered`, or the kind of a problem.
pub(crate) fn request(outcome: &'static str) {
    counter!(REQUESTS, "outcome" => outcome).increment(1);
}

pub(crate) fn unknown_end() {
    counter!(UNKNOWN_ENDS).increment(1);
}

pub(crate) fn admitted(took: Duration) {
    histogram!(ADMISSION).record(took);
}

pub(crate) fn connections(count: usize) {
    gauge!(CONNECTIONS).set(count as f64);
}

pub(crate) fn connection_refused() {
    counter!(CONNECTIONS_REFUSED).increment(1);
}

pub(crate) fn in_progress(count: usize) {
    gauge!(IN_PROGRESS).set(count as f64);
}

pub(crate) fn marks(count: u64) {
    gauge!(MARKS).set(count as f64);
}

pub(crate) fn resources_in_use(count: usize) {
    gauge!(RESOURCES).set(count as f64);
}
