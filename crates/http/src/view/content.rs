//! Content of locks in JSON: a hold's value and its purpose are bytes, which are text if they are UTF-8, else
//! base64; times are text.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The bytes of a field that was given as text or as base64.
///
/// # Errors
/// Both are given, or the base64 is invalid: for people.
pub fn bytes(field: &str, text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, String> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(format!("`{field}` and `{field}_base64` are given: give one")),
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(base64)) => {
            STANDARD.decode(base64).map_err(|error| format!("`{field}_base64` is not base64: {error}"))
        }
        (None, None) => Ok(Vec::new()),
    }
}

/// The bytes as text, or as base64; neither if there are none.
#[must_use]
pub fn shown(bytes: Vec<u8>) -> (Option<String>, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) if text.is_empty() => (None, None),
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(STANDARD.encode(error.as_bytes()))),
    }
}

/// A time as text: RFC 3339, in UTC, to the millisecond.
#[must_use]
pub fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_json() {
        for whole in [&b""[..], b"worker-7", b"\xff\x00\xfe", "Gr\u{fc}\u{df}e".as_bytes()] {
            let (text, base64) = shown(whole.to_vec());
            assert!(text.is_none() || base64.is_none());
            assert_eq!(bytes("value", text, base64).unwrap(), whole);
        }
    }

    #[test]
    fn ambiguous_or_broken_content_is_refused() {
        assert!(bytes("value", Some("a".into()), Some("YQ==".into())).is_err());
        assert!(bytes("value", None, Some("not base64!".into())).is_err());
    }
}
