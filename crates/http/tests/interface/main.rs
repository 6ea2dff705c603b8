//! The interface without a node: what needs nothing of the service but to know the caller, and the pages
//! of the documentation.

mod documents;
mod health;
mod pages;

use std::convert::Infallible;
use std::future::Ready;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use lockkeeper_http::{HttpInterface, Origin, Probe, ServiceCalls};
use lockkeeper_wire::v1;
use serde_json::Value;
use tonic::Status;
use tower_service::Service;

/// A service that identifies all callers, and has no leader.
#[derive(Clone)]
struct Leaderless;

impl Origin for Leaderless {
    type Calls = Self;

    fn identify(&self, _: &HeaderMap) -> Result<Self, Status> {
        Ok(Self)
    }

    fn checks(&self, probe: Probe) -> Vec<(&'static str, bool)> {
        match probe {
            Probe::Live => vec![("replica", true)],
            Probe::Ready => vec![("leader", false), ("member", true)],
        }
    }
}

impl Service<Request<tonic::body::Body>> for Leaderless {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<tonic::body::Body>) -> Self::Future {
        std::future::ready(Ok(no_leader().into_http()))
    }
}

impl ServiceCalls for Leaderless {
    async fn session_call(&self, _: v1::SessionCallRequest) -> Result<v1::SessionCallResponse, Status> {
        Err(no_leader())
    }

    fn authorize_any(&self) -> Result<(), Status> {
        Ok(())
    }

    async fn metrics(&self) -> Result<Option<String>, Status> {
        Ok(None)
    }
}

fn no_leader() -> Status {
    Status::unavailable("no node leads")
}

/// The answer to a GET with one more header, and its body.
pub(crate) async fn got(
    interface: &HttpInterface<Leaderless>,
    path: &str,
    header: (&str, &str),
) -> (Response<()>, Vec<u8>) {
    let request = Request::get(path).header("host", "localhost").header(header.0, header.1);
    let answer = interface.answer(Leaderless, request.body(Body::empty()).unwrap()).await;
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    (Response::from_parts(parts, ()), body)
}

/// The status and the JSON of the answer to a GET.
pub(crate) async fn json_of(interface: &HttpInterface<Leaderless>, path: &str) -> (u16, Value) {
    let (answer, body) = got(interface, path, ("accept", "*/*")).await;
    (answer.status().as_u16(), serde_json::from_slice(&body).unwrap())
}
