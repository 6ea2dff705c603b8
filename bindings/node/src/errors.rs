//! Errors as JSON, from which `lib/errors.cjs` makes its classes.

use lockkeeper_bindings::{CallError, ErrorShown, FieldValue};
use serde_json::{Map, Value, json};

/// An error for JavaScript: the name of its class, its text, and the fields that the class has.
pub(crate) type ErrorJson = Value;

/// An error that a call throws at once.
pub(crate) fn throw(error: impl Into<CallError>) -> napi::Error {
    napi::Error::from_reason(to_json(error.into()).to_string())
}

pub(crate) fn to_json(error: CallError) -> ErrorJson {
    let ErrorShown { class, text, fields } = error.into();
    let mut json = Map::from_iter([("class".to_owned(), json!(class)), ("message".to_owned(), json!(text))]);
    json.extend(fields.into_iter().map(|(field, value)| (property(field), self::value(value))));
    Value::Object(json)
}

/// A property by its name in Python: in camel case, except where JavaScript has another use for the name.
fn property(field: &str) -> String {
    match field {
        "cause" => "loss".to_owned(),
        "allowed" => "limit".to_owned(),
        "instead" => "remedy".to_owned(),
        _ => {
            let mut words = field.split('_');
            let first = words.next().unwrap_or_default().to_owned();
            words.fold(first, |name, word| {
                let (initial, rest) = word.split_at(word.len().min(1));
                name + &initial.to_ascii_uppercase() + rest
            })
        }
    }
}

fn value(value: FieldValue) -> Value {
    match value {
        FieldValue::Text(text) => json!(text),
        FieldValue::Number(number) => json!(number),
        FieldValue::Flag(flag) => json!(flag),
        FieldValue::Time(time) => json!(time.as_secs_f64() * 1e3),
    }
}
