//! A service behind the fence, and a client that writes raw HTTP requests.
//!
//! The service is a counter per path. Its write is slow, so that only admission keeps two writes apart.
//! Requests to `/hold/…` block, in the handler or in the response body, until the test releases them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use lockkeeper_fence::http::{Fenced, Rules};
use lockkeeper_fence::{HttpFence, MarkStore, MemoryFence, Resource};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

/// The limit of every wait for an event that must happen.
const SOON: Duration = Duration::from_secs(20);

/// The handlers' state and their log, for the test to inspect.
#[derive(Clone, Default)]
pub(crate) struct Book {
    /// The counters, by path.
    numbers: Arc<Mutex<HashMap<String, u64>>>,
    /// Lines such as `begun 5`, `ended 5` and `dropped 5`, with the token of the request at `/hold/…`.
    pub(crate) told: Arc<Mutex<Vec<String>>>,
}

impl Book {
    pub(crate) fn number(&self, path: &str) -> u64 {
        *self.numbers.lock().expect("whole").get(path).unwrap_or(&0)
    }

    pub(crate) fn told(&self) -> Vec<String> {
        self.told.lock().expect("whole").clone()
    }

    fn tell(&self, what: String) {
        self.told.lock().expect("whole").push(what);
    }
}

#[derive(Clone)]
struct Shop {
    book: Book,
    go_on: Arc<Semaphore>,
}

/// A running service.
pub(crate) struct Service<M> {
    pub(crate) fence: HttpFence<M>,
    pub(crate) book: Book,
    pub(crate) address: SocketAddr,
    /// Each permit lets one handler at `/hold/…` end.
    pub(crate) go_on: Arc<Semaphore>,
    task: JoinHandle<()>,
}

impl Service<MemoryFence> {
    pub(crate) async fn start() -> Self {
        Self::with(MemoryFence::new(), Rules::default()).await
    }
}

impl<M: MarkStore> Service<M> {
    pub(crate) async fn with(store: M, rules: Rules) -> Self {
        let fence = HttpFence::with(store, rules);
        let book = Book::default();
        let go_on = Arc::new(Semaphore::new(0));
        let shop = Shop { book: book.clone(), go_on: Arc::clone(&go_on) };
        let router = Router::new()
            .route("/hold/{what}", any(hold))
            .route("/panic", any(panics))
            .route("/who", any(who))
            .fallback(get(read).put(write).post(write))
            .with_state(shop)
            .layer(fence.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("served") });
        Self { fence, book, address, go_on, task }
    }

    /// Sends one request on a connection of its own.
    pub(crate) async fn ask(&self, request: &str) -> Answer {
        ask(self.address, request).await
    }

    /// As `ask`, in a separate task.
    pub(crate) fn begin(&self, request: &str) -> JoinHandle<Answer> {
        let (address, request) = (self.address, request.to_owned());
        tokio::spawn(async move { ask(address, &request).await })
    }

    /// Waits until the handlers' log contains `what`.
    pub(crate) async fn until(&self, what: &str) {
        until(what, async || self.book.told().iter().any(|told| told == what)).await;
    }

    /// Waits until no request is admitted or waiting.
    pub(crate) async fn until_unused(&self) {
        until("nobody at a door", async || self.fence.doors_in_use() == 0).await;
    }

    /// Waits until `token` is refused at `path` because a higher one has arrived.
    pub(crate) async fn until_shut_for(&self, path: &str, token: u64) {
        until("the door shut for lower tokens", async || {
            self.ask(&format!("POST {path}|Fencing-Token: {token}|Fencing-Action: enter")).await.status == 412
        })
        .await;
    }
}

impl<M> Drop for Service<M> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = tokio::time::Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < SOON, "not within {SOON:?}: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(crate) fn resource(name: &str) -> Resource {
    Resource::new(name).expect("a name")
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The problem type of a refusal; also checks the response's format.
    #[track_caller]
    pub(crate) fn problem(&self) -> &str {
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        let kind = self.body.split("\"urn:lockkeeper:fence:").nth(1).and_then(|rest| rest.split('"').next());
        for member in ["title", "detail", &format!("status\":{}", self.status)] {
            assert!(self.body.contains(member), "{member} of {self:?}");
        }
        kind.unwrap_or_else(|| panic!("no type in {self:?}"))
    }
}

/// Sends a request and reads the response. The request is `METHOD target|Header: value|…`, with an optional
/// body after `||`.
pub(crate) async fn ask(address: SocketAddr, request: &str) -> Answer {
    let mut stream = send(address, request).await;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.expect("an answer");
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Sends a request; dropping the returned stream disconnects.
pub(crate) async fn send(address: SocketAddr, request: &str) -> TcpStream {
    let (head, body) = request.split_once("||").unwrap_or((request, ""));
    let mut lines = head.split('|');
    let first = lines.next().expect("a request line");
    let mut text = format!("{first} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n");
    for line in lines {
        text.push_str(line);
        text.push_str("\r\n");
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(text.as_bytes()).await.expect("sent");
    stream
}

async fn read(State(shop): State<Shop>, request: Request) -> String {
    shop.book.number(request.uri().path()).to_string()
}

/// Sets the counter to the number in the body, slowly, so that other requests can run in between.
async fn write(State(shop): State<Shop>, request: Request) -> Result<String, StatusCode> {
    let path = request.uri().path().to_owned();
    let body = axum::body::to_bytes(request.into_body(), 100).await.map_err(|_| StatusCode::BAD_REQUEST)?;
    let text = std::str::from_utf8(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    shop.book.numbers.lock().expect("whole").insert(path, text.parse().unwrap_or(0));
    Ok(text.to_owned())
}

/// Returns the token that the fence passed to the handler.
async fn who(request: Request) -> String {
    let fenced = request.extensions().get::<Fenced>();
    fenced.map_or_else(
        || "nobody".to_owned(),
        |fenced| format!("{} {} {}", fenced.action, fenced.resource, fenced.section.token()),
    )
}

async fn panics() {
    panic!("the handler fails");
}

/// Logs the end of a request when dropped, so also if its handler is dropped.
struct Teller(Book, String, &'static str);

impl Drop for Teller {
    fn drop(&mut self) {
        self.0.tell(format!("{} {}", self.2, self.1));
    }
}

/// The handler of `/hold/body` returns at once, and its body ends when the test releases it. At other paths
/// the handler returns when the test releases it.
async fn hold(State(shop): State<Shop>, request: Request) -> Response {
    let token = request.extensions().get::<Fenced>().map_or(0, |fenced| fenced.section.token().get());
    shop.book.tell(format!("begun {token}"));
    let teller = Teller(shop.book.clone(), token.to_string(), "dropped");
    let wait = async move {
        let mut teller = teller;
        shop.go_on.acquire().await.expect("open").forget();
        teller.2 = "ended";
    };
    if request.uri().path() != "/hold/body" {
        wait.await;
        return "done".into_response();
    }
    let (frames, body) = mpsc::channel(1);
    tokio::spawn(async move {
        frames.send("first ").await.expect("read");
        wait.await;
        let _ = frames.send("last").await;
    });
    Response::new(axum::body::Body::new(Slow(body)))
}

/// A body that ends when the test releases it.
struct Slow(mpsc::Receiver<&'static str>);

impl http_body::Body for Slow {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        let frame = self.0.poll_recv(context);
        frame.map(|frame| frame.map(|text| Ok(http_body::Frame::data(bytes::Bytes::from(text)))))
    }
}
