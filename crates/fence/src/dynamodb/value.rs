//! DynamoDB's values and their JSON form.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, json};

/// An item, or its key: values by attribute name.
pub type Item = BTreeMap<String, Value>;

/// One value with its DynamoDB type. Numbers are text: they may have 38 digits.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are DynamoDB's own")]
pub enum Value {
    S(String),
    N(String),
    B(Vec<u8>),
    Bool(bool),
    Null,
    M(Item),
    L(Vec<Value>),
    Ss(Vec<String>),
    Ns(Vec<String>),
    Bs(Vec<Vec<u8>>),
}

impl Value {
    /// A text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::S(text.into())
    }

    /// A number.
    #[must_use]
    pub fn number(number: impl fmt::Display) -> Self {
        Self::N(number.to_string())
    }

    /// The value as `u64`, if it is a number that fits.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::N(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// The value in DynamoDB's JSON form: `{"N": "7"}`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::S(text) => json!({ "S": text }),
            Self::N(digits) => json!({ "N": digits }),
            Self::B(bytes) => json!({ "B": encoded(bytes) }),
            Self::Bool(bool) => json!({ "BOOL": bool }),
            Self::Null => json!({ "NULL": true }),
            Self::M(item) => json!({ "M": item_to_json(item) }),
            Self::L(items) => json!({ "L": items.iter().map(Self::to_json).collect::<Vec<_>>() }),
            Self::Ss(texts) => json!({ "SS": texts }),
            Self::Ns(numbers) => json!({ "NS": numbers }),
            Self::Bs(many) => json!({ "BS": many.iter().map(|bytes| encoded(bytes)).collect::<Vec<_>>() }),
        }
    }

    /// The inverse of [`to_json`](Self::to_json); `None` if `json` is not a DynamoDB value.
    #[must_use]
    pub fn from_json(json: &serde_json::Value) -> Option<Self> {
        let object = json.as_object().filter(|object| object.len() == 1)?;
        let (kind, value) = object.iter().next()?;
        let texts =
            || value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>();
        Some(match kind.as_str() {
            "S" => Self::S(value.as_str()?.to_owned()),
            "N" => Self::N(value.as_str()?.to_owned()),
            "B" => Self::B(decoded(value)?),
            "BOOL" => Self::Bool(value.as_bool()?),
            "NULL" => Self::Null,
            "M" => Self::M(item_from_json(value)?),
            "L" => Self::L(value.as_array()?.iter().map(Self::from_json).collect::<Option<_>>()?),
            "SS" => Self::Ss(texts()?),
            "NS" => Self::Ns(texts()?),
            "BS" => Self::Bs(value.as_array()?.iter().map(decoded).collect::<Option<_>>()?),
            _ => return None,
        })
    }
}

fn encoded(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn decoded(json: &serde_json::Value) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(json.as_str()?).ok()
}

/// An item in DynamoDB's JSON form.
#[must_use]
pub fn item_to_json(item: &Item) -> serde_json::Value {
    let pairs = item.iter().map(|(name, value)| (name.clone(), value.to_json()));
    serde_json::Value::Object(pairs.collect::<Map<_, _>>())
}

/// The inverse of [`item_to_json`]; `None` if `json` is not an item.
#[must_use]
pub fn item_from_json(json: &serde_json::Value) -> Option<Item> {
    let pairs = json.as_object()?.iter();
    pairs.map(|(name, value)| Some((name.clone(), Value::from_json(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_round_trips_through_json() {
        let item: Item = [
            ("s", Value::text("größe")),
            ("n", Value::number(u64::MAX)),
            ("b", Value::B(vec![0, 255, 7])),
            ("t", Value::Bool(true)),
            ("0", Value::Null),
            ("m", Value::M([("x".to_owned(), Value::number(-1.5))].into())),
            ("l", Value::L(vec![Value::Null, Value::text("")])),
            ("ss", Value::Ss(vec!["a".into(), "b".into()])),
            ("ns", Value::Ns(vec!["1".into()])),
            ("bs", Value::Bs(vec![vec![], vec![1]])),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        assert_eq!(item_from_json(&item_to_json(&item)), Some(item));
        for none in
            [json!({"N": 7}), json!({"S": "a", "N": "1"}), json!({"X": ""}), json!("a"), json!({"B": "*"})]
        {
            assert_eq!(Value::from_json(&none), None, "{none}");
        }
    }
}
