//! Decodes lists in the replies of scripts and commands. `None`: the reply is not as the script or command
//! makes it.

use redis::Value;

/// The remaining items of a list.
pub(super) struct Items<'a>(std::slice::Iter<'a, Value>);

impl<'a> Items<'a> {
    pub(super) fn of(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(items) => Some(Self(items.iter())),
            _ => None,
        }
    }

    /// Takes the next item as bytes.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        match self.0.next()? {
            Value::BulkString(bytes) => Some(bytes),
            Value::SimpleString(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// Takes the next item as text.
    pub(super) fn word(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// Takes the next item as a number.
    pub(super) fn integer(&mut self) -> Option<i64> {
        match self.0.next()? {
            Value::Int(number) => Some(*number),
            Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// Takes the next item as a number that is not negative.
    pub(super) fn number(&mut self) -> Option<u64> {
        u64::try_from(self.integer()?).ok()
    }

    /// Takes the next item as a `u32`.
    pub(super) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// Takes the next item as a list.
    pub(super) fn list(&mut self) -> Option<Self> {
        Self::of(self.0.next()?)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}
