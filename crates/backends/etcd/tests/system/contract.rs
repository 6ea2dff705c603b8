//! `etcd:`, on a real server, through a proxy for each client. Behind these, one proxy of gRPC refuses calls.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use lockkeeper::BackendErrorKind::{self, Denied, Operator, Unreachable};
use lockkeeper::Locks;
use lockkeeper_contract::{Fault, Subject};
use lockkeeper_rig::{Etcd, Faults, ServiceRefusal};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server as GrpcServer};
use tonic::{Code, Status};

struct Server {
    etcd: Etcd,
    faults: Faults,
    refuser: Refuser,
    /// Where the refuser listens.
    address: SocketAddr,
}

impl Server {
    fn new() -> Self {
        let etcd = Etcd::start();
        let channel = Endpoint::try_from(etcd.url().replace("etcd://", "http://")).unwrap().connect_lazy();
        let refuser = Refuser { channel, refusal: Arc::default() };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
        tokio::spawn(
            GrpcServer::builder().serve_with_incoming(refuser.clone(), listener.with_nodelay(Some(true))),
        );
        Self { etcd, faults: Faults::default(), refuser, address }
    }
}

/// Forwards calls to etcd, or refuses them.
#[derive(Clone)]
struct Refuser {
    channel: Channel,
    /// The error, and how many calls were refused with it.
    refusal: Arc<Mutex<(Option<ServiceRefusal>, usize)>>,
}

impl Service<Request<Body>> for Refuser {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut refusal = self.refusal.lock().unwrap();
        if let (Some(ServiceRefusal { code, text }), refused) = &mut *refusal {
            *refused += 1;
            let status = Status::new(Code::from_bytes(code.as_bytes()), *text);
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        let mut channel = self.channel.clone();
        Box::pin(async move {
            let ready = std::future::poll_fn(|cx| channel.poll_ready(cx)).await;
            let answer = match ready {
                Ok(()) => channel.call(request).await,
                Err(error) => Err(error),
            };
            Ok(answer.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
        })
    }
}

impl Subject for Server {
    fn scheme(&self) -> &'static str {
        "etcd"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(Duration::from_secs(2))
    }

    async fn client(&self, label: &str) -> Locks {
        self.client_through(&[label]).await
    }

    async fn client_through(&self, labels: &[&str]) -> Locks {
        let proxies: Vec<_> =
            labels.iter().map(|label| self.faults.proxy(label, self.address).to_string()).collect();
        Locks::connect_as(&format!("etcd://{}", proxies.join(",")), labels[0]).await.unwrap()
    }

    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        &[
            (Unreachable, ServiceRefusal { code: "14", text: "etcdserver: no leader" }),
            (Unreachable, ServiceRefusal { code: "14", text: "etcdserver: leader changed" }),
            (Unreachable, ServiceRefusal { code: "14", text: "etcdserver: request timed out" }),
            (Unreachable, ServiceRefusal { code: "8", text: "etcdserver: too many requests" }),
            (Operator, ServiceRefusal { code: "8", text: "etcdserver: mvcc: database space exceeded" }),
            (Denied, ServiceRefusal { code: "7", text: "etcdserver: permission denied" }),
        ]
    }

    fn refuse(&self, refusal: ServiceRefusal) {
        *self.refuser.refusal.lock().unwrap() = (Some(refusal), 0);
    }

    fn stop_refusing(&self) {
        self.refuser.refusal.lock().unwrap().0 = None;
    }

    fn refused(&self) -> usize {
        self.refuser.refusal.lock().unwrap().1
    }

    async fn operator(&self) -> Locks {
        Locks::connect_as(&self.etcd.url(), "operator").await.unwrap()
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn stall(&self, duration: Duration) -> bool {
        self.etcd.stop();
        std::thread::sleep(duration);
        self.etcd.cont();
        true
    }

    async fn restart(&self) {
        self.etcd.kill();
        self.etcd.start_again();
    }

    async fn wipe(&self) {
        self.etcd.wipe();
    }
}

lockkeeper_contract::contract! {
    etcd => Server::new(), page "../../../docs/backends/etcd.md" column 1, faults [Fault::IdleCut, Fault::RefusedUntilLost, Fault::Swallowed, Fault::SwallowedInUse];
}
