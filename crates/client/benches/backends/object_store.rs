//! An object store, on SeaweedFS: the conditional requests themselves, by a plain HTTP client.

use std::path::Path;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lockkeeper_rig::SeaweedFs;
use tonic::codegen::http::{Method, Request, Response, header};

use crate::Outcome;
use crate::measure::{Pair, compare, ours};

/// The rig makes it.
const BUCKET: &str = "lockkeeper";

type Body = Full<prost::bytes::Bytes>;

pub(crate) async fn measure() -> Outcome {
    // The directory in which `cargo xtask test` installs packages of other registries (xtask/src/foreign.rs).
    let server = SeaweedFs::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign"));
    let url = format!("s3://{BUCKET}/ours?credentials=none&endpoint={}", server.url());
    compare("s3, on SeaweedFS", &by_hand(&server), &ours(&url, 1).await?).await
}

/// Acquires by reading the object and writing it if it is as it was; releases by writing it again.
fn by_hand(server: &SeaweedFs) -> Pair {
    let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new()).build_http();
    let base = format!("{}/{BUCKET}/hand", server.url());
    Arc::new(move |number| {
        let (client, url) = (client.clone(), format!("{base}/{number}"));
        Box::pin(async move {
            let request = |method: Method, condition: Option<(header::HeaderName, String)>| {
                let mut request = Request::builder().method(method).uri(&url);
                if let Some((name, value)) = condition {
                    request = request.header(name, value);
                }
                request.body(Full::from(format!("{:032x}", fastrand::u128(..))))
            };
            let read = answered(&client, request(Method::GET, None)?).await?;
            let condition = match etag(&read) {
                Some(known) if read.status().is_success() => (header::IF_MATCH, known),
                _ => (header::IF_NONE_MATCH, "*".to_owned()),
            };
            let taken = answered(&client, request(Method::PUT, Some(condition))?).await?;
            let known = etag(&taken).filter(|_| taken.status().is_success()).ok_or("it is held")?;
            let released = answered(&client, request(Method::PUT, Some((header::IF_MATCH, known)))?).await?;
            if released.status().is_success() { Ok(()) } else { Err("it was lost".into()) }
        })
    })
}

/// The answer, with its body read.
async fn answered(client: &Client<HttpConnector, Body>, request: Request<Body>) -> Outcome<Response<()>> {
    let (parts, body) = client.request(request).await?.into_parts();
    body.collect().await?;
    Ok(Response::from_parts(parts, ()))
}

fn etag(answer: &Response<()>) -> Option<String> {
    answer.headers().get(header::ETAG)?.to_str().ok().map(ToOwned::to_owned)
}
