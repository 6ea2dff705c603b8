//! Records in DynamoDB.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValuesOnConditionCheckFailure};
use lockkeeper_backend::ConnectError;

use super::{OnceRecord, OnceStore, prefixed};

/// Records in a table of DynamoDB: an item each, whose partition key is a string.
///
/// An item's key is `lockkeeper:once:` and the record's key, so that the table may also contain locks. Its
/// attributes are the string `attempt`, the binary `outcome`, and, if records are kept for a time, `expires`
/// (seconds since 1970): let the table's time to live use that attribute.
#[derive(Clone, Debug)]
pub struct DynamoDbRecords {
    client: Client,
    table: String,
    partition_key: String,
    keep: Option<Duration>,
}

impl DynamoDbRecords {
    /// Records in this table, whose partition key is named `key`.
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        Self { client, table: table.into(), partition_key: "key".to_owned(), keep: None }
    }

    /// Records in the table of a `dynamodb://` URL; `lockkeeper dynamodb init` creates such a table. Region
    /// and credentials are those of AWS's tools unless the URL has them. Does not contact DynamoDB.
    ///
    /// # Errors
    /// The URL is invalid, or there is no region, or there are no credentials.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        let (client, table, partition_key) = lockkeeper_dynamodb::client(url).await?;
        Ok(Self { client, table, partition_key, keep: None })
    }

    /// Lets DynamoDB delete each record some time after `time` has passed.
    #[must_use]
    pub fn keep_for(self, time: Duration) -> Self {
        Self { keep: Some(time), ..self }
    }
}

fn record(item: &HashMap<String, AttributeValue>) -> Result<OnceRecord, Box<dyn Error + Send + Sync>> {
    let attempt = item.get("attempt").and_then(|it| it.as_s().ok());
    let outcome = item.get("outcome").and_then(|it| it.as_b().ok());
    match (attempt, outcome) {
        (Some(attempt), Some(outcome)) => {
            Ok(OnceRecord { attempt: attempt.clone(), outcome: outcome.as_ref().to_vec() })
        }
        _ => Err("the item is no record: `attempt` or `outcome` is missing".into()),
    }
}

impl OnceStore for DynamoDbRecords {
    type Error = Box<dyn Error + Send + Sync>;

    async fn get(&self, key: &str) -> Result<Option<OnceRecord>, Self::Error> {
        let get = self.client.get_item().table_name(&self.table).consistent_read(true);
        let got = get.key(&self.partition_key, AttributeValue::S(prefixed(key))).send().await?;
        got.item.as_ref().map(record).transpose()
    }

    async fn put(&self, key: &str, new: &OnceRecord) -> Result<OnceRecord, Self::Error> {
        let mut put = self
            .client
            .put_item()
            .table_name(&self.table)
            .item(&self.partition_key, AttributeValue::S(prefixed(key)))
            .item("attempt", AttributeValue::S(new.attempt.clone()))
            .item("outcome", AttributeValue::B(Blob::new(new.outcome.clone())))
            .condition_expression("attribute_not_exists(#key)")
            .expression_attribute_names("#key", &self.partition_key)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        if let Some(keep) = self.keep {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            put = put.item("expires", AttributeValue::N((now + keep).as_secs().to_string()));
        }
        let Err(error) = put.send().await else { return Ok(new.clone()) };
        let error = error.into_service_error();
        let PutItemError::ConditionalCheckFailedException(failed) = &error else { return Err(error.into()) };
        match &failed.item {
            Some(item) => record(item),
            None => Ok(self.get(key).await?.unwrap_or_else(|| new.clone())),
        }
    }
}
