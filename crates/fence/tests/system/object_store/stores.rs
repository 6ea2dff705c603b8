//! The stores of the tests: in memory, and stand-ins for S3 and Azure over real HTTP.
//!
//! The clients of `object_store` use a minimal HTTP client that never resends a request: in the tests of lost
//! responses only the fence may do so. The stand-ins and the conditions that they support:
//! - in memory (`object_store`'s own): ETags that count, If-None-Match: * and If-Match.
//! - moto for S3: ETags that are the MD5 of the content, both conditions with 412, 404 for If-Match on a
//!   missing object.
//! - Azurite for Azure: ETags that are a time stamp, If-None-Match: * with 409, If-Match with 412.
//! - s3rver for S3: no conditions at all, which the probe must detect.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::TokioExecutor;
use lockkeeper_rig::{Azurite, S3, azurite, s3};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::memory::InMemory;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

/// The directory in which `cargo xtask test` installs packages of other registries.
pub(crate) fn foreign() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign")
}

/// An HTTP client without TLS or retries.
#[derive(Debug, Clone)]
struct Plain(Client<Tcp, HttpRequestBody>);

#[async_trait]
impl HttpService for Plain {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let failed = |error| HttpError::new(HttpErrorKind::Unknown, error);
        let (head, body) = self.0.request(request).await.map_err(failed)?.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

/// Creates [`Plain`] clients.
#[derive(Debug)]
struct PlainHttp;

impl HttpConnector for PlainHttp {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Plain(Client::builder(TokioExecutor::new()).build_http())))
    }
}

fn sends_nothing_twice() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

pub(crate) fn in_memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

/// A client of the stand-in for S3 at `url`.
pub(crate) fn s3_client(url: &str) -> Arc<dyn ObjectStore> {
    let builder = AmazonS3Builder::new()
        .with_http_connector(PlainHttp)
        .with_retry(sends_nothing_twice())
        .with_allow_http(true)
        .with_endpoint(url)
        .with_region("us-east-1")
        .with_bucket_name(s3::BUCKET)
        .with_access_key_id("S3RVER")
        .with_secret_access_key("S3RVER");
    Arc::new(builder.build().expect("a client of S3"))
}

/// A client of the stand-in for Azure at `url`, with the account that every emulator has.
pub(crate) fn azure_client(url: &str) -> Arc<dyn ObjectStore> {
    let builder = MicrosoftAzureBuilder::new()
        .with_http_connector(PlainHttp)
        .with_retry(sends_nothing_twice())
        .with_account(azurite::ACCOUNT)
        .with_access_key(azurite::KEY)
        .with_allow_http(true)
        .with_endpoint(url.to_owned())
        .with_container_name(azurite::CONTAINER);
    Arc::new(builder.build().expect("a client of Azure"))
}

/// A running stand-in, and its client.
pub(crate) trait StandIn: Send + Sync + Sized + 'static {
    fn start() -> Self;
    /// The address by which another process connects to it.
    fn address(&self) -> String;
    fn client(address: &str) -> Arc<dyn ObjectStore>;
}

impl StandIn for S3 {
    fn start() -> Self {
        S3::start(&foreign())
    }

    fn address(&self) -> String {
        self.url()
    }

    fn client(address: &str) -> Arc<dyn ObjectStore> {
        s3_client(address)
    }
}

impl StandIn for Azurite {
    fn start() -> Self {
        Azurite::start(&foreign())
    }

    fn address(&self) -> String {
        self.url()
    }

    fn client(address: &str) -> Arc<dyn ObjectStore> {
        azure_client(address)
    }
}
