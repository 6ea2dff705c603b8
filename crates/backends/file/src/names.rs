//! Encoding of lock names as file names.
//!
//! The encoding is injective and never contains a dot, so `NAME.hold` and `NAME.slot3` cannot belong to
//! another lock.

use hmac_sha256::Hash;
use lockkeeper_backend::hex;
use lockkeeper_core::{LockName, Slot};

/// A longer encoding is cut and gets a hash: file names have at most 255 bytes.
const ENCODED_BYTES_MAX: usize = 200;
/// Length of the readable prefix of a cut encoding.
const PREFIX_BYTES: usize = 100;

/// The name of the record file; the names of the hold files start with it.
pub(super) fn stem(name: &LockName) -> String {
    let mut encoded = String::with_capacity(name.as_str().len());
    let mut cut = None;
    for &byte in name.as_str().as_bytes() {
        if encoded.len() <= PREFIX_BYTES {
            cut = Some(encoded.len());
        }
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    if encoded.len() <= ENCODED_BYTES_MAX {
        return encoded;
    }
    encoded.truncate(cut.unwrap_or(0));
    // `+` never occurs in an encoding, so no short name can collide with a cut one.
    format!("{encoded}+{}", hex(&Hash::hash(name.as_str().as_bytes())))
}

/// The file whose flock is the exclusive or shared hold.
pub(super) fn hold_file(stem: &str) -> String {
    format!("{stem}.hold")
}

/// The file whose flock is one permit.
pub(super) fn slot_file(stem: &str, slot: Slot) -> String {
    format!("{stem}.slot{slot}")
}

/// The file of a hold: of a permit if it has a slot.
pub(super) fn file_of_hold(stem: &str, slot: Option<Slot>) -> String {
    slot.map_or_else(|| hold_file(stem), |slot| slot_file(stem, slot))
}

/// Whether a file in `locks/` is a record.
pub(super) fn is_record(file: &str) -> bool {
    !file.contains('.')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn of(name: &str) -> String {
        stem(&LockName::parse(name).unwrap())
    }

    #[test]
    fn different_locks_have_different_files() {
        let long = "x".repeat(512);
        let other = format!("{}y", "x".repeat(511));
        let names =
            ["a", "A", "a.hold", "a/b", "a%2Fb", "a%2fb", "a+b", "..", ".", "заказ", "a b", &long, &other];
        let stems: BTreeSet<String> = names.iter().map(|name| of(name)).collect();
        assert_eq!(stems.len(), names.len());
        for stem in &stems {
            assert!(is_record(stem) && !stem.contains('/') && slot_file(stem, 65535).len() <= 255, "{stem}");
            assert!(!is_record(&hold_file(stem)) && !is_record(&slot_file(stem, 0)));
        }
    }

    #[test]
    fn short_names_stay_readable() {
        assert_eq!(of("orders/42"), "orders%2F42");
        assert_eq!(of("a.b"), "a%2Eb");
        assert!(of(&"é".repeat(200)).starts_with("%C3%A9%C3%A9"));
    }
}
