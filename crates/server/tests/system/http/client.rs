//! A client of HTTP/JSON, with one connection.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::{DEADLINE, Server};

pub(super) struct HttpClient {
    sender: SendRequest<Full<Bytes>>,
    pub(super) secret: String,
    pub(super) token: Option<String>,
    pub(super) session: u64,
}

impl HttpClient {
    pub(super) async fn connect(server: &Server, secret: u8) -> Self {
        let socket = TcpStream::connect(server.running.http_address().unwrap()).await.unwrap();
        Self::over(socket, secret).await
    }

    pub(super) async fn over(
        socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        secret: u8,
    ) -> Self {
        let (sender, connection) = handshake(TokioIo::new(socket)).await.unwrap();
        // Ends with an error if the node cuts the connection.
        tokio::spawn(connection);
        Self { sender, secret: format!("{secret:02x}").repeat(16), token: None, session: 0 }
    }

    /// Connects, and opens a session.
    pub(super) async fn open(server: &Server, secret: u8, ttl_ms: u64) -> Self {
        let mut client = Self::connect(server, secret).await;
        client.open_session(ttl_ms).await;
        client
    }

    pub(super) async fn open_session(&mut self, ttl_ms: u64) {
        let (status, opened) =
            self.post("/v1/sessions", json!({ "ttl_ms": ttl_ms, "label": "worker" })).await;
        assert_eq!(status, 200, "{opened}");
        self.session = opened["session"].as_u64().unwrap();
    }

    pub(super) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        request = request.header("lockkeeper-secret", &self.secret);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request
    }

    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        timeout(DEADLINE, self.sender.send_request(request)).await.unwrap().unwrap()
    }

    /// The status and the JSON of the answer.
    pub(super) async fn answer(&mut self, request: Request<Full<Bytes>>) -> (u16, Value) {
        let (head, body) = self.send(request).await.into_parts();
        let body = timeout(DEADLINE, body.collect()).await.unwrap().unwrap().to_bytes();
        if head.status.as_u16() >= 400 {
            assert_eq!(head.headers["content-type"], "application/problem+json");
        }
        let json = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        (head.status.as_u16(), json)
    }

    pub(super) async fn with_body(&mut self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let request = self.request(method, path).header("content-type", "application/json");
        self.answer(request.body(Full::from(body.to_string())).unwrap()).await
    }

    pub(super) async fn post(&mut self, path: &str, body: Value) -> (u16, Value) {
        self.with_body(Method::POST, path, body).await
    }

    pub(super) async fn get(&mut self, path: &str) -> (u16, Value) {
        let request = self.request(Method::GET, path).body(Full::default()).unwrap();
        self.answer(request).await
    }

    pub(super) async fn delete(&mut self, path: &str) -> (u16, Value) {
        let request = self.request(Method::DELETE, path).body(Full::default()).unwrap();
        self.answer(request).await
    }

    /// Makes a request for a lock. `more` has further fields.
    pub(super) async fn acquire(&mut self, request: u64, name: &str, more: Value) -> (u16, Value) {
        let mut body = json!({ "session": self.session, "request": request });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post(&format!("/v1/locks/{name}"), body).await
    }

    /// Acquires a lock that is free; returns the token.
    pub(super) async fn hold(&mut self, request: u64, name: &str) -> u64 {
        let (status, held) = self.acquire(request, name, json!({})).await;
        assert_eq!((status, &held["state"]), (200, &json!("held")), "{held}");
        held["token"].as_u64().unwrap()
    }

    pub(super) async fn release(&mut self, request: u64) -> Value {
        let path = format!("/v1/sessions/{}/requests/{request}", self.session);
        let (status, ended) = self.delete(&path).await;
        assert_eq!(status, 200, "{ended}");
        ended["end"].clone()
    }

    pub(super) async fn keep_alive(&mut self) -> (u16, Value) {
        self.post(&format!("/v1/sessions/{}/keep-alive", self.session), json!({})).await
    }
}
