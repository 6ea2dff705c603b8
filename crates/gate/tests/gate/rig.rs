//! An upstream, a gate in front of it, and a client that writes raw requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lockkeeper_gate::{Gate, GateOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// The limit of every wait for an event that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A service that logs what it does.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    /// Each permit lets one request at `/hold/…` end.
    pub(crate) go_on: Arc<Semaphore>,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let this = Self { address, log: Arc::default(), go_on: Arc::new(Semaphore::new(0)) };
        let served = this.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let served = served.clone();
                let service = service_fn(move |request| {
                    let served = served.clone();
                    async move { Ok::<_, Infallible>(served.answer(request).await) }
                });
                tokio::spawn(async move {
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        this
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<BoxBody<Bytes, hyper::Error>> {
        let (parts, body) = request.into_parts();
        let token = parts.headers.get("fencing-token").map_or("none", |it| it.to_str().unwrap());
        let text = match parts.uri.path() {
            "/echo" => return Response::new(BoxBody::new(body)),
            "/headers" => format!("{} {:?}\n{:?}", parts.method, parts.version, parts.headers),
            "/large" => "large".repeat(200_000),
            path => {
                self.note(format!("begun {} {path} {token}", parts.method));
                let Ok(body) = body.collect().await else {
                    self.note(format!("cut {} {path} {token}", parts.method));
                    return Response::default();
                };
                if path.starts_with("/hold/") {
                    self.go_on.acquire().await.unwrap().forget();
                }
                self.note(format!("ended {} {path} {token}", parts.method));
                format!("{} bytes", body.to_bytes().len())
            }
        };
        let mut response = Response::new(BoxBody::new(Full::from(text).map_err(|never| match never {})));
        response.headers_mut().insert("connection", "x-hop, keep-alive".parse().unwrap());
        response.headers_mut().insert("x-hop", "1".parse().unwrap());
        response
    }

    fn note(&self, line: String) {
        self.log.lock().unwrap().push(line);
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) async fn until(&self, line: &str) {
        until(line, async || self.log().iter().any(|it| it == line)).await;
    }
}

/// An upstream that does `what` with each connection.
pub(crate) async fn raw_upstream<F: Future<Output = ()> + Send>(
    what: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let what = Arc::new(what);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let what = what.clone();
            tokio::spawn(async move { what(stream).await });
        }
    });
    format!("http://{address}")
}

/// Reads the headers of a request.
pub(crate) async fn read_headers(stream: &mut TcpStream) -> String {
    let mut headers = Vec::new();
    while !headers.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await.unwrap_or(0) == 0 {
            break;
        }
        headers.push(byte[0]);
    }
    String::from_utf8(headers).unwrap()
}

/// A running gate.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) data: tempfile::TempDir,
    end: Option<oneshot::Sender<()>>,
    task: JoinHandle<bool>,
}

impl Running {
    pub(crate) async fn before(upstream: &str) -> Self {
        Self::with(upstream, |_| {}).await
    }

    pub(crate) async fn with(upstream: &str, change: impl FnOnce(&mut GateOptions)) -> Self {
        Self::on(tempfile::tempdir().unwrap(), upstream, change).await
    }

    pub(crate) async fn on(
        data: tempfile::TempDir,
        upstream: &str,
        change: impl FnOnce(&mut GateOptions),
    ) -> Self {
        let any = "127.0.0.1:0".parse().unwrap();
        let mut options = GateOptions::new(any, upstream, data.path());
        options.admin_listen = Some(any);
        options.wait = Duration::from_millis(300);
        options.settle = Duration::from_secs(2);
        change(&mut options);
        let gate = Gate::start(options).await.unwrap();
        let (address, admin) = (gate.address().unwrap(), gate.admin_address().unwrap());
        let (end, ended) = oneshot::channel::<()>();
        let task = tokio::spawn(async move { gate.run(async { drop(ended.await) }).await.unwrap() });
        Self { address, admin, data, end: Some(end), task }
    }

    /// Ends the gate; returns its data, and whether all requests had ended.
    pub(crate) async fn end(mut self) -> (tempfile::TempDir, bool) {
        drop(self.end.take());
        let all_ended = self.task.await.unwrap();
        (self.data, all_ended)
    }

    /// Sends one request on a connection of its own: `PUT /path|Header: value|…|=body`.
    pub(crate) async fn ask(&self, request: &str) -> Answer {
        ask(self.address, request).await
    }

    /// As [`Self::ask`], in a task.
    pub(crate) fn begin(&self, request: &str) -> JoinHandle<Answer> {
        let (address, request) = (self.address, request.to_owned());
        tokio::spawn(async move { ask(address, &request).await })
    }

    pub(crate) async fn until_status(&self, request: &str, status: u16) {
        until(&format!("{request}: {status}"), async || self.ask(request).await.status == status).await;
    }

    /// A counter or gauge on the page of metrics; 0 if it is not there.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = ask(self.admin, "GET /metrics").await.body;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: String,
}

pub(crate) async fn ask(address: SocketAddr, request: &str) -> Answer {
    ask_from("127.0.0.1", address, request).await
}

/// A connection from one of the loopback network's addresses.
pub(crate) async fn connect_from(client: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{client}:0").parse().unwrap()).unwrap();
    socket.connect(address).await.unwrap()
}

pub(crate) async fn ask_from(client: &str, address: SocketAddr, request: &str) -> Answer {
    let (head, body) = request.split_once("|=").unwrap_or((request, ""));
    let mut lines = head.split('|');
    let mut text = format!("{} HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n", lines.next().unwrap());
    for header in lines {
        text.push_str(&format!("{header}\r\n"));
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    let mut answers = answers_on(connect_from(client, address).await, text.as_bytes()).await;
    assert_eq!(answers.len(), 1, "{request}: {answers:?}");
    answers.remove(0)
}

/// Sends bytes, and reads the answers until the connection is closed.
pub(crate) async fn raw(address: SocketAddr, bytes: &[u8]) -> Vec<Answer> {
    answers_on(TcpStream::connect(address).await.unwrap(), bytes).await
}

pub(crate) async fn answers_on(mut stream: TcpStream, bytes: &[u8]) -> Vec<Answer> {
    // A server that refuses the beginning may close before the end is sent.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let read = async {
        let mut some = [0; 4096];
        loop {
            match stream.read(&mut some).await {
                Ok(0) | Err(_) => return,
                Ok(count) => answer.extend_from_slice(&some[..count]),
            }
        }
    };
    tokio::time::timeout(SOON, read).await.expect("the connection is closed");
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.split("HTTP/1.1 ")
        .skip(1)
        .map(|one| {
            let (headers, body) = one.split_once("\r\n\r\n").unwrap_or((one, ""));
            let status = headers[..3].parse().unwrap();
            Answer { status, headers: headers.to_lowercase(), body: body.to_owned() }
        })
        .collect()
}

/// Waits for a condition; the deadline only makes a failure visible.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + SOON;
    while !is_so().await {
        assert!(tokio::time::Instant::now() < deadline, "waited for {SOON:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
