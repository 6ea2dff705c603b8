//! Traces of acquires: one per sampled request, for every outcome, with the stages that it reached.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_server::{AcquireTrace, ServerOptions, TraceSink};
use lockkeeper_wire::TraceContext;
use lockkeeper_wire::v1::{self, client_item, server_item::What};
use tokio::time::Instant;

use crate::harness::{Client, DEADLINE, SECRET, Server, acquire, directory};

/// The traces that a node has sent.
#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<AcquireTrace>>>);

impl Collected {
    fn sink(&self) -> TraceSink {
        let traces = self.0.clone();
        TraceSink(Arc::new(move |trace| {
            traces.lock().unwrap().push(trace);
            true
        }))
    }

    /// Waits for this many traces, and takes them.
    async fn take(&self, count: usize) -> Vec<AcquireTrace> {
        let until = Instant::now() + DEADLINE;
        loop {
            let there = self.0.lock().unwrap().len();
            if there >= count {
                return std::mem::take(&mut *self.0.lock().unwrap());
            }
            assert!(Instant::now() < until, "{count} traces are due, there are {there}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn one(&self) -> AcquireTrace {
        let [trace] = <[AcquireTrace; 1]>::try_from(self.take(1).await).expect("one trace");
        trace
    }
}

fn serve(data: &std::path::Path) -> (Server, Collected) {
    let collected = Collected::default();
    let (listen, traces) = ("127.0.0.1:0".to_owned(), Some(collected.sink()));
    (Server::start_with(ServerOptions { listen, traces, ..ServerOptions::new(data) }), collected)
}

/// A client whose first request holds the lock `a`, and its session.
async fn holder(server: &Server) -> (Client, u64) {
    let mut client = Client::connect(server).await;
    let session = client.open(SECRET, "a").await;
    client.hold(session, 1, "a").await;
    (client, session)
}

fn context(span_id: u64) -> TraceContext {
    TraceContext { trace_id: 7, span_id }
}

/// An acquire within the span of this number.
fn traced(span: u64, seq: u64, name: &str, wait: bool) -> client_item::What {
    let traceparent = context(span).to_string();
    client_item::What::Acquire(v1::Acquire { traceparent, ..acquire(seq, name, wait) })
}

fn stages(trace: &AcquireTrace) -> Vec<&'static str> {
    trace.stages.iter().map(|stage| stage.name).collect()
}

const TO_THE_LOG: [&str; 5] = ["inbox", "batch", "log_sync", "commit", "apply"];

/// Checks that the stages follow each other without gaps from the start to the end.
fn check_times(trace: &AcquireTrace) {
    let mut time = trace.start;
    for stage in &trace.stages {
        assert!(stage.start == time && stage.end >= time, "{trace:?}");
        time = stage.end;
    }
    assert_eq!(trace.end, time, "{trace:?}");
}

#[tokio::test]
async fn granted_acquire_is_traced_from_its_arrival_to_its_answer() {
    let data = directory();
    let (server, collected) = serve(data.path());
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "a").await;
    client.send(session, traced(1, 1, "orders/42", false));
    let token = client.granted().await;
    let trace = collected.one().await;
    check_times(&trace);
    assert_eq!(stages(&trace), TO_THE_LOG);
    assert_eq!((trace.context, trace.node, trace.session, trace.request), (context(1), 1, session, 1));
    assert_eq!((&trace.names[..], trace.name_count), (&["orders/42".to_owned()][..], 1));
    assert_eq!((trace.outcome, trace.token), ("granted", Some(token)));
}

#[tokio::test]
async fn only_sampled_acquires_are_traced() {
    let data = directory();
    let (server, collected) = serve(data.path());
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "a").await;
    let sampled = context(1).to_string();
    for (seq, traceparent) in ["", "nonsense", &sampled.replace("-01", "-00")].into_iter().enumerate() {
        let seq = seq as u64 + 1;
        let traceparent = traceparent.to_owned();
        let acquire = v1::Acquire { traceparent, ..acquire(seq, &format!("a{seq}"), false) };
        client.send(session, client_item::What::Acquire(acquire));
        client.granted().await;
    }
    client.send(session, traced(2, 9, "b", false));
    client.granted().await;
    assert_eq!(collected.one().await.context, context(2));
}

#[tokio::test]
async fn wait_for_the_lock_is_a_stage() {
    let data = directory();
    let (server, collected) = serve(data.path());
    let (mut client, session) = holder(&server).await;
    client.send(session, traced(1, 2, "a", true));
    assert!(matches!(client.what().await, What::Queued(_)));
    let held = Duration::from_millis(50);
    tokio::time::sleep(held).await;
    client.finish(session, 3, 1);
    let mut token = None;
    while token.is_none() {
        if let What::Granted(granted) = client.what().await {
            token = Some(granted.token);
        }
    }
    let trace = collected.one().await;
    check_times(&trace);
    assert_eq!(stages(&trace), [&TO_THE_LOG[..], &["wait"]].concat());
    let wait = trace.stages.last().unwrap();
    assert!(wait.end.duration_since(wait.start).unwrap() >= held, "{trace:?}");
    assert_eq!((trace.outcome, trace.token), ("granted", token));
}

#[tokio::test]
async fn every_end_of_a_request_ends_its_trace() {
    let data = directory();
    let (server, collected) = serve(data.path());
    let (client, session) = holder(&server).await;
    let outcome = async |what: client_item::What| {
        client.send(session, what);
        let trace = collected.one().await;
        check_times(&trace);
        assert_eq!(trace.token, None, "{trace:?}");
        trace.outcome
    };
    assert_eq!(outcome(traced(1, 2, "a", false)).await, "busy");
    let limited =
        v1::Acquire { at_most_ms: Some(1), traceparent: context(2).to_string(), ..acquire(3, "a", true) };
    assert_eq!(outcome(client_item::What::Acquire(limited)).await, "timed-out");
    // A number that was used, for the same and for another lock.
    for (name, ended) in [("a", "timed-out"), ("b", "refused")] {
        let again = v1::Acquire { traceparent: context(3).to_string(), ..acquire(3, name, false) };
        assert_eq!(outcome(client_item::What::Acquire(again)).await, ended);
    }
    client.send(session, traced(4, 5, "a", true));
    let left = client_item::What::Finish(v1::Finish { seq: 6, target: 5, done_through: 0 });
    assert_eq!(outcome(left).await, "left");
    client.send(session, traced(5, 7, "a", true));
    assert_eq!(outcome(client_item::What::Close(v1::CloseSession {})).await, "session-gone");
}

/// The front refuses content that is not allowed, and the replica never gets it: there is nothing to trace.
#[tokio::test]
async fn refused_content_leaves_no_open_trace() {
    let data = directory();
    let (server, collected) = serve(data.path());
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "a").await;
    let large = v1::Acquire {
        value: vec![0; 100_000],
        traceparent: context(1).to_string(),
        ..acquire(1, "a", false)
    };
    client.send_all(vec![
        v1::ClientItem { session, what: Some(client_item::What::Acquire(large)) },
        v1::ClientItem { session, what: Some(traced(2, 2, "b", false)) },
    ]);
    assert!(matches!(client.what().await, What::Refused(_)));
    client.granted().await;
    assert_eq!(collected.one().await.context, context(2));
    server.stop().await.unwrap();
    assert!(collected.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn end_of_the_stream_ends_its_traces() {
    let data = directory();
    let (server, collected) = serve(data.path());
    let (mut holder, session) = holder(&server).await;
    let mut client = Client::connect(&server).await;
    let waiting = client.open([8; 16], "b").await;
    client.send(waiting, traced(1, 1, "a", true));
    assert!(matches!(client.what().await, What::Queued(_)));
    drop(client);
    let trace = collected.one().await;
    assert_eq!((trace.outcome, trace.stages.last().unwrap().name), ("queued", "wait"));
    // Sent again on the next stream, it is another span of the same trace.
    let mut client = Client::connect(&server).await;
    let attach = v1::AttachSession { secret: vec![8; 16], attach: 2 };
    client.send(waiting, client_item::What::Attach(attach));
    client.send(waiting, traced(1, 1, "a", true));
    holder.finish(session, 2, 1);
    assert!(matches!(holder.what().await, What::Finished(_)));
    while !matches!(client.what().await, What::Granted(_)) {}
    let trace = collected.one().await;
    assert_eq!((trace.context, trace.outcome), (context(1), "granted"));
    // The node ends the streams when it stops.
    holder.hold(session, 3, "b").await;
    holder.send(session, traced(2, 4, "a", true));
    assert!(matches!(holder.what().await, What::Queued(_)));
    server.stop().await.unwrap();
    assert_eq!(collected.one().await.outcome, "shutdown");
}

/// A waiting request that its client sends again is one trace.
#[tokio::test]
async fn repeated_commands_pass_no_stage_twice() {
    let data = directory();
    let (server, collected) = serve(data.path());
    let (mut client, session) = holder(&server).await;
    client.send(session, traced(1, 2, "a", true));
    assert!(matches!(client.what().await, What::Queued(_)));
    for _ in 0..100 {
        client.send(session, traced(2, 2, "a", true));
        assert!(matches!(client.what().await, What::Queued(_)));
    }
    client.finish(session, 3, 1);
    while !matches!(client.what().await, What::Granted(_)) {}
    let trace = collected.one().await;
    check_times(&trace);
    assert_eq!(stages(&trace), [&TO_THE_LOG[..], &["wait"]].concat());
    assert_eq!((trace.context, trace.outcome), (context(1), "granted"));
}

/// A call that waits, and another that gives the request up, under the same number, as HTTP does.
#[tokio::test]
async fn wait_that_another_call_gives_up_is_traced_as_a_wait() {
    let data = directory();
    let (server, collected) = serve(data.path());
    let (_holder, _) = holder(&server).await;
    let calls = server.calls().await;
    let call = async |session, what, poll_ms| {
        let item = Some(v1::ClientItem { session, what: Some(what) });
        let call = v1::SessionCallRequest { secret: vec![8; 16], item, poll_ms, ..Default::default() };
        calls.clone().session_call(call).await.unwrap().into_inner().item.unwrap()
    };
    let open = v1::OpenSession { secret: vec![8; 16], ttl_ms: 30_000, ..v1::OpenSession::default() };
    let waiting = call(0, client_item::What::Open(open), 0).await.session;
    let queued = call(waiting, client_item::What::Acquire(acquire(1, "a", true)), 0).await;
    assert!(matches!(queued.what, Some(What::Queued(_))), "{queued:?}");
    let give_up = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let finish = v1::Finish { seq: 1, target: 1, done_through: 0 };
        call(waiting, client_item::What::Finish(finish), 0).await
    };
    let (waited, _) = tokio::join!(call(waiting, traced(1, 1, "a", true), 10_000), give_up);
    assert!(matches!(waited.what, Some(What::Finished(_) | What::Ended(_))), "{waited:?}");
    let trace = collected.one().await;
    check_times(&trace);
    assert_eq!((stages(&trace).last(), trace.outcome), (Some(&"wait"), "left"), "{trace:?}");
}

/// A crowd of sampled waiters: a bounded number is traced, those that have come last, and all are served.
#[tokio::test]
async fn crowd_of_traced_waiters_is_bounded() {
    const CROWD: u64 = 6_000;
    const WAITING: usize = 2_048;
    let data = directory();
    let (server, collected) = serve(data.path());
    let (mut client, session) = holder(&server).await;
    for first in (2..CROWD + 2).step_by(1_000) {
        let item = |seq| v1::ClientItem { session, what: Some(traced(seq, seq, "a", true)) };
        client.send_all((first..first + 1_000).map(item).collect());
        for _ in 0..1_000 {
            assert!(matches!(client.what().await, What::Queued(_)));
        }
    }
    let ended = collected.take(CROWD as usize - WAITING).await;
    assert_eq!(ended.len(), CROWD as usize - WAITING);
    assert!(ended.iter().all(|trace| trace.outcome == "queued"), "{:?}", ended.first());
    client.send(session, client_item::What::Close(v1::CloseSession {}));
    assert!(matches!(client.what().await, What::SessionGone(_)));
    let last = collected.take(WAITING).await;
    assert!(last.iter().all(|trace| trace.outcome == "session-gone"), "{:?}", last.first());
    assert_eq!(last.len(), WAITING);
    // There is room again.
    let other = client.open([9; 16], "b").await;
    client.send(other, traced(1, 1, "a", false));
    assert_eq!(collected.one().await.outcome, "granted");
}
