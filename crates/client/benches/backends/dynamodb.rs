//! DynamoDB, on an emulator: the requests of AWS Labs' lock client, made by the SDK.
//!
//! The emulator serves one request at a time, in Python: the ratio is that of the numbers of requests, more
//! than that of their costs at AWS.

use std::path::Path;
use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::types::AttributeValue;
use lockkeeper_rig::DynamoDb;

use crate::Outcome;
use crate::measure::{Pair, compare, ours};

const TABLE: &str = "locks";

pub(crate) async fn measure() -> Outcome {
    // The directory in which `cargo xtask test` installs packages of other registries (xtask/src/foreign.rs).
    let server = DynamoDb::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign"));
    let url = format!("dynamodb://{TABLE}?region=eu-central-1&credentials=none&endpoint={}", server.url());
    lockkeeper::backends::dynamodb::init(&url).await?;
    compare("dynamodb, on moto", &by_hand(&server), &ours(&url, 1).await?).await
}

/// Acquires by reading the item and putting it unless somebody else has; releases by marking it.
fn by_hand(server: &DynamoDb) -> Pair {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("none", "none", None, None, "bench"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(server.url());
    let client = Client::from_conf(config.build());
    Arc::new(move |number| {
        let client = client.clone();
        Box::pin(async move {
            let text = |text: &str| AttributeValue::S(text.to_owned());
            let key = text(&format!("bench/hand/{number}"));
            let version = text(&format!("{:032x}", fastrand::u128(..)));
            let read = client.get_item().table_name(TABLE).key("key", key.clone()).consistent_read(true);
            let found = read.send().await?.item;
            let put = client
                .put_item()
                .table_name(TABLE)
                .item("key", key.clone())
                .item("ownerName", text("by hand"))
                .item("leaseDuration", text("30000"))
                .item("recordVersionNumber", version.clone());
            let put = match found.and_then(|item| item.get("recordVersionNumber").cloned()) {
                None => put.condition_expression("attribute_not_exists(ownerName)"),
                Some(before) => put
                    .condition_expression("recordVersionNumber = :before")
                    .expression_attribute_values(":before", before),
            };
            put.send().await?;
            client
                .update_item()
                .table_name(TABLE)
                .key("key", key)
                .update_expression("SET isReleased = :one")
                .condition_expression("recordVersionNumber = :version")
                .expression_attribute_values(":one", text("1"))
                .expression_attribute_values(":version", version)
                .send()
                .await?;
            Ok(())
        })
    })
}
