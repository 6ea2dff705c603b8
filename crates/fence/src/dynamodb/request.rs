//! A request with the parameters of DynamoDB's API, for any client to send.

use std::collections::BTreeMap;

use serde_json::{Map, json};

use super::value::{Item, Value, item_to_json};

/// The API call of a request, with the parameters that only this call has.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are DynamoDB's own")]
pub enum Operation {
    PutItem { item: Item },
    UpdateItem { key: Item, update_expression: String },
}

/// A request. Its fields are named like DynamoDB's parameters: pass them to your client, or send
/// [`body`](Self::body) under [`target`](Self::target) yourself.
///
/// A refusal must contain the item, so set `ReturnValuesOnConditionCheckFailure: ALL_OLD`, as `body` does:
/// the fence determines the reason of the refusal from the item.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are DynamoDB's own")]
pub struct DynamoRequest {
    pub table_name: String,
    pub operation: Operation,
    /// An empty text means no condition.
    pub condition_expression: String,
    pub expression_attribute_names: BTreeMap<String, String>,
    pub expression_attribute_values: BTreeMap<String, Value>,
    /// Whether the response must contain the item after the write (`ReturnValues: ALL_NEW`): after `enter`,
    /// this is the read.
    pub return_all_new: bool,
}

impl DynamoRequest {
    /// The value of the header `X-Amz-Target`.
    #[must_use]
    pub fn target(&self) -> &'static str {
        match self.operation {
            Operation::PutItem { .. } => "DynamoDB_20120810.PutItem",
            Operation::UpdateItem { .. } => "DynamoDB_20120810.UpdateItem",
        }
    }

    /// The body, as JSON.
    #[must_use]
    pub fn body(&self) -> serde_json::Value {
        let mut body = self.parts();
        if self.return_all_new {
            body.insert("ReturnValues".to_owned(), json!("ALL_NEW"));
        }
        serde_json::Value::Object(body)
    }

    /// The request as a member of a transaction.
    pub(super) fn member(&self) -> serde_json::Value {
        match self.operation {
            Operation::PutItem { .. } => json!({ "Put": self.parts() }),
            Operation::UpdateItem { .. } => json!({ "Update": self.parts() }),
        }
    }

    fn parts(&self) -> Map<String, serde_json::Value> {
        let mut parts = Map::new();
        let mut put = |name: &str, value| parts.insert(name.to_owned(), value);
        put("TableName", json!(self.table_name));
        match &self.operation {
            Operation::PutItem { item } => {
                put("Item", item_to_json(item));
            }
            Operation::UpdateItem { key, update_expression } => {
                put("Key", item_to_json(key));
                put("UpdateExpression", json!(update_expression));
            }
        }
        // DynamoDB rejects an empty expression.
        if !self.condition_expression.is_empty() {
            put("ConditionExpression", json!(self.condition_expression));
        }
        put("ExpressionAttributeNames", json!(self.expression_attribute_names));
        if !self.expression_attribute_values.is_empty() {
            put("ExpressionAttributeValues", item_to_json(&self.expression_attribute_values));
        }
        put("ReturnValuesOnConditionCheckFailure", json!("ALL_OLD"));
        parts
    }
}
