//! Takes the lists apart that scripts answer.

use redis::Value;

/// What is left of a list, from its front.
pub(super) struct Items(std::vec::IntoIter<Value>);

impl From<Vec<Value>> for Items {
    fn from(items: Vec<Value>) -> Self {
        Self(items.into_iter())
    }
}

impl From<Value> for Items {
    /// What is no list has nothing in it.
    fn from(value: Value) -> Self {
        match value {
            Value::Array(items) => items.into(),
            _ => Vec::new().into(),
        }
    }
}

impl Items {
    /// The next one as bytes; none if it is not text.
    pub(super) fn bytes(&mut self) -> Vec<u8> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => bytes,
            Some(Value::SimpleString(text)) => text.into_bytes(),
            _ => Vec::new(),
        }
    }

    /// The next one as a word.
    pub(super) fn word(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// The next one as a number that is not negative.
    pub(super) fn number(&mut self) -> Option<u64> {
        match self.0.next()? {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::BulkString(digits) => std::str::from_utf8(&digits).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The next one as a small number.
    pub(super) fn small(&mut self) -> Option<u32> {
        self.number().and_then(|number| u32::try_from(number).ok())
    }

    /// The next one as a list.
    pub(super) fn list(&mut self) -> Self {
        self.0.next().map_or_else(|| Vec::new().into(), Self::from)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}
