//! Traces of acquires: real nodes and real runs, and a stand-in for a collector that speaks OTLP.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::transport::server::{ServerTlsConfig, TcpIncoming};
use tonic::{Request, Response, Status};

use crate::node::Node;
use crate::support::{CommandExt, TestDir, wait_until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// A collector that stores the spans it receives, with the names of their services.
struct Collector {
    spans: Spans,
    url: String,
    _runtime: Runtime,
}

#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for Spans {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let service =
                resource.resource.map(|it| text(&it.attributes, "service.name")).unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().unwrap().extend(spans.map(|span| (service.clone(), span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Self {
        Self::start_at("127.0.0.1:0", None)
    }

    /// Starts at this address, with TLS if there is a certificate for `localhost`.
    fn start_at(address: &str, identity: Option<tonic::transport::Identity>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _entered = runtime.enter();
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let url = match identity {
            Some(_) => format!("https://localhost:{}", address.port()),
            None => format!("http://{address}"),
        };
        let mut server = tonic::transport::Server::builder();
        if let Some(identity) = identity {
            // Another feature may have brought a second provider, and this server has no way to choose. Fails
            // if one is installed already.
            let _ = rustls::crypto::ring::default_provider().install_default();
            server = server.tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
        }
        let spans = Spans::default();
        let server = server.add_service(TraceServiceServer::new(spans.clone()));
        let listener = TcpListener::from_std(listener).unwrap();
        runtime.spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        drop(_entered);
        Self { spans, url, _runtime: runtime }
    }

    /// The spans of a trace by their names, once there are those.
    fn spans(&self, trace: &str, names: &[&str]) -> BTreeMap<String, (String, Span)> {
        let of_trace = || {
            let spans = self.spans.0.lock().unwrap();
            let of_trace = spans.iter().filter(|(_, span)| hex(&span.trace_id) == trace);
            of_trace.map(|it| (it.1.name.clone(), it.clone())).collect::<BTreeMap<_, _>>()
        };
        wait_until("the spans are sent", || names.iter().all(|name| of_trace().contains_key(*name)));
        of_trace()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn value(attributes: &[KeyValue], key: &str) -> Option<Value> {
    attributes.iter().find(|it| it.key == key)?.value.clone()?.value
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    match value(attributes, key) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?} in {attributes:?}"),
    }
}

fn number(span: &Span, key: &str) -> i64 {
    match value(&span.attributes, key) {
        Some(Value::IntValue(number)) => number,
        other => panic!("{key}: {other:?} in {span:?}"),
    }
}

const STAGES: [&str; 5] = [
    "lockkeeper.service.inbox",
    "lockkeeper.service.batch",
    "lockkeeper.service.log_sync",
    "lockkeeper.service.commit",
    "lockkeeper.service.apply",
];
const SERVED: &str = "lockkeeper.service.acquire";

/// Checks that the stages are parts of the span of the whole.
fn check_stages(spans: &BTreeMap<String, (String, Span)>) {
    let (_, served) = &spans[SERVED];
    for stage in STAGES {
        let (service, span) = &spans[stage];
        assert_eq!((service.as_str(), &span.parent_span_id), ("lockkeeper", &served.span_id), "{span:?}");
        let within = served.start_time_unix_nano..=served.end_time_unix_nano;
        assert!(
            within.contains(&span.start_time_unix_nano) && within.contains(&span.end_time_unix_nano),
            "{span:?}"
        );
    }
}

/// A node that sends its traces to this collector.
fn traced_node(test: &TestDir, collector: &Collector) -> Node {
    let options = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--otlp", &collector.url];
    test.begin("data", &options).ready()
}

#[test]
fn run_is_one_trace_from_its_caller_to_the_leader() {
    let collector = Collector::start();
    let test = TestDir::new();
    let node = traced_node(&test, &collector);
    let job = "echo $TRACEPARENT $LOCKKEEPER_TOKEN > job; exit 3";
    let ended = test
        .bare(["run", "--locks", &node.url(), "--otlp", &collector.url, "orders/42", "--", "sh", "-c", job])
        .env("TRACEPARENT", format!("00-{TRACE}-{CALLER}-01"))
        .ended();
    assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{ended:?}");
    let spans = collector.spans(TRACE, &["lockkeeper.run", "lockkeeper.acquire", SERVED, STAGES[4]]);
    check_stages(&spans);
    let (service, run) = &spans["lockkeeper.run"];
    assert_eq!((service.as_str(), hex(&run.parent_span_id).as_str()), ("lockkeeper run", CALLER));
    assert_eq!((text(&run.attributes, "name").as_str(), number(run, "exit_code")), ("orders/42", 3));
    let (_, acquire) = &spans["lockkeeper.acquire"];
    assert_eq!(acquire.parent_span_id, run.span_id);
    let (service, served) = &spans[SERVED];
    assert_eq!((service.as_str(), &served.parent_span_id), ("lockkeeper", &acquire.span_id));
    assert_eq!(text(&served.attributes, "lockkeeper.outcome"), "granted");
    assert_eq!(text(&acquire.attributes, "outcome"), "acquired");
    let job = fs::read_to_string(test.path("job")).unwrap();
    let token = number(served, "lockkeeper.token");
    assert_eq!(job, format!("00-{TRACE}-{}-01 {token}\n", hex(&run.span_id)));
    assert_eq!(number(acquire, "token"), token);
}

/// A caller that does not sample its trace gets none; without a caller's trace the run begins one.
#[test]
fn unsampled_run_sends_nothing() {
    let collector = Collector::start();
    let test = TestDir::new();
    let node = traced_node(&test, &collector);
    let (url, locks) = (collector.url.clone(), node.url());
    let run = |traceparent: Option<&str>| {
        let mut command = test.bare(["run", "--locks", &locks, "--otlp", &url, "a", "--", "true"]);
        let ended = command.envs(traceparent.map(|it| ("TRACEPARENT", it))).ended();
        assert_eq!(ended.code, 0, "{ended:?}");
    };
    run(Some(&format!("00-{TRACE}-{CALLER}-00")));
    run(None);
    wait_until("the second run is traced", || {
        collector.spans.0.lock().unwrap().iter().any(|(_, span)| span.name == SERVED)
    });
    let spans = collector.spans.0.lock().unwrap();
    assert!(spans.iter().all(|(_, span)| hex(&span.trace_id) != TRACE), "{spans:?}");
}

/// A call by HTTP at a follower is traced by the leader.
#[test]
fn leader_traces_what_a_follower_forwards() {
    let collector = Collector::start();
    let test = TestDir::new();
    let (nodes, _ports) = test.begin_three_with(&["--otlp", &collector.url]);
    let curl = |words: &[&str]| {
        let ended = Command::new("curl").args(["-sS", "--fail-with-body"]).args(words).ended();
        serde_json::from_str::<serde_json::Value>(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"))
    };
    let is_follower = |node: &&Node| curl(&[&format!("{}/v1/status", node.http())])["role"] == "follower";
    let follower = nodes.iter().find(is_follower).unwrap();
    let leader = curl(&[&format!("{}/v1/status", follower.http())])["leader"].as_i64().unwrap();
    let secret = "Lockkeeper-Secret: 00112233445566778899aabbccddeeff";
    let open = format!("{}/v1/sessions", follower.http());
    let session = curl(&["-H", secret, "--json", r#"{"ttl_ms": 30000}"#, &open])["session"].as_u64().unwrap();
    let acquire = format!(r#"{{"session": {session}, "request": 1}}"#);
    let traceparent = format!("traceparent: 00-{TRACE}-{CALLER}-01");
    let lock = format!("{}/v1/locks/orders/42", follower.http());
    let held = curl(&["-H", secret, "-H", &traceparent, "--json", &acquire, &lock]);
    let spans = collector.spans(TRACE, &[SERVED, STAGES[4]]);
    check_stages(&spans);
    let (_, served) = &spans[SERVED];
    assert_eq!(hex(&served.parent_span_id), CALLER);
    assert_eq!(number(served, "lockkeeper.node"), leader);
    assert_eq!(Some(number(served, "lockkeeper.token")), held["token"].as_i64());
}

/// A wait that is given up, and the page on it: it names the spans, their attributes and outcomes.
#[test]
fn wait_for_a_held_lock_is_a_span() {
    const PAGE: &str = include_str!("../../../../docs/metrics.md");
    const WAIT: &str = "lockkeeper.service.wait";
    let collector = Collector::start();
    let test = TestDir::new();
    let node = traced_node(&test, &collector);
    let test = test.over(&node.url());
    let _holder = test.holder("a", &[]);
    let run = ["run", "--otlp", &collector.url, "--wait", "2s", "a", "--", "true"];
    let ended = test.lockkeeper(run).env("TRACEPARENT", format!("00-{TRACE}-{CALLER}-01")).ended();
    assert_eq!(ended.code, i32::from(exit::BUSY), "{ended:?}");
    let spans = collector.spans(TRACE, &["lockkeeper.run", "lockkeeper.acquire", SERVED, WAIT]);
    check_stages(&spans);
    let (_, wait) = &spans[WAIT];
    assert!(wait.end_time_unix_nano - wait.start_time_unix_nano > 500_000_000, "{wait:?}");
    let (_, served) = &spans[SERVED];
    let outcome = text(&served.attributes, "lockkeeper.outcome");
    assert!(["left", "timed-out"].contains(&outcome.as_str()), "{outcome}");
    let names = spans.keys().map(String::as_str).chain(served.attributes.iter().map(|it| it.key.as_str()));
    for name in names.chain([outcome.as_str()]) {
        assert!(PAGE.contains(name), "docs/metrics.md does not name `{name}`");
    }
}

/// Locks work as before, one line says why there are no traces, and another when there are again.
#[test]
fn unreachable_collector_is_reported_once() {
    let test = TestDir::new();
    let address = test.address();
    let unreachable = format!("http://{address}");
    let node = test.begin("data", &["--listen", "127.0.0.1:0", "--otlp", &unreachable]).ready();
    let lost = format!("traces are lost until the collector at {unreachable} takes them");
    let run =
        || test.bare(["run", "--locks", &node.url(), "--otlp", &unreachable, "a", "--", "true"]).ended();
    for _ in 0..2 {
        let ended = run();
        assert_eq!((ended.code, ended.err.matches(&lost).count()), (0, 1), "{ended:?}");
    }
    wait_until("it is logged", || node.log().contains(&lost));
    let collector = Collector::start_at(&address, None);
    let again = format!("the collector at {unreachable} takes traces again");
    wait_until("it takes them again", || {
        let ended = run();
        ended.code == 0 && node.log().contains(&again)
    });
    assert!(!collector.spans.0.lock().unwrap().is_empty());
    assert_eq!(node.log().matches(&lost).count(), 1, "{}", node.log());
}

/// A collector that accepts connections and says nothing delays the end of a run for a moment, and is
/// reported.
#[test]
fn silent_collector_is_reported() {
    let test = TestDir::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let words = ["run", "--otlp", &url, "--status-file", "status", "a", "--", "true"];
    let ended = test.lockkeeper(words).ended();
    assert_eq!((ended.code, ended.err.lines().count()), (0, 1), "{ended:?}");
    assert!(ended.err.contains("traces are lost") && ended.err.contains(&url), "{ended:?}");
}

#[test]
fn node_that_stops_sends_its_last_spans() {
    let collector = Collector::start();
    let test = TestDir::new();
    let node = traced_node(&test, &collector);
    let run = ["run", "--locks", &node.url(), "--otlp", &collector.url, "a", "--", "true"];
    let ended = test.bare(run).env("TRACEPARENT", format!("00-{TRACE}-{CALLER}-01")).ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(node.stopped(Signal::SIGTERM).code, 0);
    let spans = collector.spans.0.lock().unwrap();
    assert!(spans.iter().any(|(_, span)| span.name == STAGES[4]), "{spans:?}");
}

/// The collector's certificate is checked against the system's authorities.
#[test]
fn traces_are_sent_by_tls() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let identity = tonic::transport::Identity::from_pem(made.cert.pem(), made.signing_key.serialize_pem());
    let collector = Collector::start_at("127.0.0.1:0", Some(identity));
    let test = TestDir::new();
    let run = || {
        let mut command = test.lockkeeper(["run", "--otlp", &collector.url, "a", "--", "true"]);
        command.env("TRACEPARENT", format!("00-{TRACE}-{CALLER}-01"));
        command
    };
    let refused = run().ended();
    assert!(refused.code == 0 && refused.err.contains("traces are lost"), "{refused:?}");
    assert!(collector.spans.0.lock().unwrap().is_empty());
    fs::write(test.path("authorities.pem"), made.cert.pem()).unwrap();
    let ended = run().env("SSL_CERT_FILE", test.path("authorities.pem")).ended();
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{ended:?}");
    collector.spans(TRACE, &["lockkeeper.run", "lockkeeper.acquire"]);
    // Without any authority, a run goes on, and a node does not start.
    fs::write(test.path("none.pem"), "").unwrap();
    let ended = run().env("SSL_CERT_FILE", test.path("none.pem")).env("SSL_CERT_DIR", "none").ended();
    assert!(ended.code == 0 && ended.err.contains("traces"), "{ended:?}");
}

#[test]
fn wrong_address_of_a_collector_is_refused() {
    let test = TestDir::new();
    for wrong in [
        "localhost:4317",
        "ftp://a",
        "http://a:4318/v1/traces",
        "http://u@a",
        "http://",
        "http://:1",
        "http://a:99999",
    ] {
        for words in
            [&["run", "--otlp", wrong, "a", "--", "true"][..], &["serve", "--data", "d", "--otlp", wrong]]
        {
            let ended = test.lockkeeper(words).ended();
            assert_eq!(ended.code, i32::from(exit::USAGE), "{ended:?}");
            assert!(ended.err.contains(wrong) && ended.err.contains("http://HOST:4317"), "{ended:?}");
        }
    }
}
