//! Traces for a collector, by OTLP over gRPC (`--otlp`).
//!
//! Traces never delay or fail a lock: spans wait in bounded queues, and threads of their own send them. A
//! collector that does not accept them is reported once. `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and
//! `OTEL_EXPORTER_OTLP_HEADERS` work as OpenTelemetry defines them.

mod node;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::{Key, Value};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::SpanData;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

pub(crate) use node::NodeTraces;
pub(crate) use run::{RunTraces, traceparent};

/// The instrumentation scope of the spans.
const TRACER: &str = "lockkeeper";
/// A collector that can't be connected to within this time is out of reach.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A batch that the collector has not taken after this time is lost. Less than [`FLUSH`], so that the loss is
/// reported.
const EXPORT_LIMIT: Duration = Duration::from_millis(1_500);
/// How long a process that ends waits for its last spans to be sent.
const FLUSH: Duration = Duration::from_secs(2);
/// How often an idle connection is tested.
const PING_EVERY: Duration = Duration::from_secs(10);

/// A collector, and the connection to it.
#[derive(Debug)]
pub(crate) struct CollectorExporter {
    exporter: SpanExporter,
    url: String,
    report: fn(String),
    is_failing: Arc<AtomicBool>,
    runtime: ExportRuntime,
}

/// The thread that carries a connection. Its end is not awaited, since it may be dropped on a thread of
/// another runtime.
#[derive(Debug)]
struct ExportRuntime(Option<Runtime>);

impl Drop for ExportRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl CollectorExporter {
    /// Does no I/O yet. `report` is called when sending begins to fail, and when it succeeds again.
    ///
    /// # Errors
    /// TLS can't be used, or a thread can't be started.
    fn new(url: &str, report: fn(String)) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockkeeper-otlp")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let runtime = ExportRuntime(Some(runtime));
        let _entered = runtime.0.as_ref().map(Runtime::enter);
        let channel = channel(url).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        })?;
        let exporter = SpanExporter::builder().with_tonic().with_channel(channel).build();
        drop(_entered);
        Ok(Self {
            exporter: exporter.map_err(|error| error.to_string())?,
            url: url.to_owned(),
            report,
            is_failing: Arc::default(),
            runtime,
        })
    }
}

fn channel(url: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(url.to_owned())?
        .connect_timeout(CONNECT_LIMIT)
        .timeout(EXPORT_LIMIT)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_while_idle(true);
    let endpoint = match url.starts_with("https:") {
        true => endpoint.tls_config(ClientTlsConfig::new().with_native_roots())?,
        false => endpoint,
    };
    Ok(endpoint.connect_lazy())
}

/// The OpenTelemetry resource of this process's spans. `service` is its name, unless the environment gives
/// another one.
fn resource(service: &'static str) -> Resource {
    let given = Resource::builder().build();
    let name = given.get(&Key::from_static_str("service.name"));
    // OpenTelemetry's name for a program without one.
    let is_unnamed = name.is_none_or(|name| match name {
        Value::String(name) => name.as_str().starts_with("unknown_service"),
        _ => false,
    });
    match is_unnamed {
        true => Resource::builder().with_service_name(service).build(),
        false => given,
    }
}

impl opentelemetry_sdk::trace::SpanExporter for CollectorExporter {
    /// Reports the first failure of a series, and its end.
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let url = &self.url;
        match &result {
            Err(error) if !self.is_failing.swap(true, Ordering::Relaxed) => (self.report)(format!(
                "traces are lost until the collector at {url} takes them ({error}); locks are not affected"
            )),
            Ok(()) if self.is_failing.swap(false, Ordering::Relaxed) => {
                (self.report)(format!("the collector at {url} takes traces again"));
            }
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
