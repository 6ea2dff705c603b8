//! Decodes lists in the replies of scripts and commands.

use redis::Value;

/// The remaining items of a list.
pub(super) struct Items(std::vec::IntoIter<Value>);

impl From<Vec<Value>> for Items {
    fn from(items: Vec<Value>) -> Self {
        Self(items.into_iter())
    }
}

impl From<Value> for Items {
    /// A value that is not a list becomes an empty one.
    fn from(value: Value) -> Self {
        match value {
            Value::Array(items) => items.into(),
            _ => Vec::new().into(),
        }
    }
}

impl Items {
    /// Takes the next item as bytes; empty if it is not a string.
    pub(super) fn bytes(&mut self) -> Vec<u8> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => bytes,
            Some(Value::SimpleString(text)) => text.into_bytes(),
            _ => Vec::new(),
        }
    }

    /// Takes the next item as text.
    pub(super) fn word(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Takes the next item as a number that is not negative.
    pub(super) fn number(&mut self) -> Option<u64> {
        match self.0.next()? {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::BulkString(digits) => std::str::from_utf8(&digits).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// Takes the next item as a `u32`.
    pub(super) fn small(&mut self) -> Option<u32> {
        self.number().and_then(|number| u32::try_from(number).ok())
    }

    /// Takes the next item as a list.
    pub(super) fn list(&mut self) -> Self {
        self.0.next().map_or_else(|| Vec::new().into(), Self::from)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}
