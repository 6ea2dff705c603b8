//! A minimal client of DynamoDB's API, in place of the SDK that a user of the fence has.

use std::path::Path;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lockkeeper_fence::dynamodb::{
    DynamoDbError, DynamoRequest, Guarded, Item, Reason, Resource, Transaction, Value, item_from_json,
    item_to_json,
};
use lockkeeper_rig::DynamoDb;
use lockkeeper_rig::dynamodb::{AUTHORIZATION, TABLE};
use serde_json::json;

pub(crate) fn server() -> DynamoDb {
    // The directory in which `cargo xtask test` installs packages of other registries (xtask/src/foreign.rs).
    DynamoDb::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign"))
}

pub(crate) fn item(pairs: &[(&str, Value)]) -> Item {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

pub(crate) fn resource(id: &str) -> Resource {
    Resource::new(TABLE, item(&[("id", Value::text(id))])).expect("a resource")
}

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) url: String,
    http: Http<HttpConnector, Full<Bytes>>,
}

impl Client {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), http: Http::builder(TokioExecutor::new()).build_http() }
    }

    /// The status and body of the response.
    pub(crate) async fn ask(&self, target: &str, body: &serde_json::Value) -> (u16, serde_json::Value) {
        let request = http::Request::post(&self.url)
            .header("X-Amz-Target", target)
            .header("Authorization", AUTHORIZATION)
            .header("Content-Type", "application/x-amz-json-1.0")
            .body(Full::from(body.to_string()))
            .expect("a request");
        let answer = self.http.request(request).await.expect("an answer");
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&bytes).expect("JSON"))
    }

    /// Sends a request. If its condition fails, returns `Err` with the item; any other error is a panic.
    pub(crate) async fn send(&self, request: &DynamoRequest) -> Result<serde_json::Value, Option<Item>> {
        let (status, answer) = self.ask(request.target(), &request.body()).await;
        if status == 200 {
            return Ok(answer);
        }
        let kind = answer["__type"].as_str().unwrap_or_default();
        assert!(kind.ends_with("#ConditionalCheckFailedException"), "{status}: {answer}\n{}", request.body());
        Err(item_from_json(&answer["Item"]))
    }

    /// Sends a fenced request, and the second try if needed, as a user does. Returns the item in the response
    /// and the number of requests.
    pub(crate) async fn fenced(&self, mut guarded: Guarded) -> Result<(Item, usize), DynamoDbError> {
        for tries in 1..=2 {
            match self.send(guarded.request()).await {
                Ok(answer) => return Ok((item_from_json(&answer["Attributes"]).unwrap_or_default(), tries)),
                Err(item) => guarded = guarded.after_refusal(item.as_ref())?,
            }
        }
        panic!("a third try: {guarded:?}")
    }

    /// Sends a transaction, and further tries if needed; returns the number of requests.
    pub(crate) async fn together(&self, mut all: Transaction) -> Result<usize, DynamoDbError> {
        for tries in 1..=all.members().len() + 1 {
            let (status, answer) = self.ask(Transaction::TARGET, &all.body()).await;
            if status == 200 {
                return Ok(tries);
            }
            let kind = answer["__type"].as_str().unwrap_or_default();
            assert!(kind.ends_with("#TransactionCanceledException"), "{status}: {answer}");
            let reasons = answer["CancellationReasons"].as_array().expect("reasons");
            let reasons: Vec<_> = reasons
                .iter()
                .map(|reason| Reason {
                    code: reason["Code"].as_str().expect("a code").to_owned(),
                    item: item_from_json(&reason["Item"]),
                })
                .collect();
            all = all.after_cancelled(&reasons)?;
        }
        panic!("one try more than there are requests: {all:?}")
    }

    /// Reads an item consistently.
    pub(crate) async fn get(&self, resource: &Resource) -> Option<Item> {
        let body = json!({
            "TableName": resource.table(), "Key": item_to_json(resource.key()), "ConsistentRead": true,
        });
        let (status, answer) = self.ask("DynamoDB_20120810.GetItem", &body).await;
        assert_eq!(status, 200, "{answer}");
        item_from_json(&answer["Item"])
    }
}
