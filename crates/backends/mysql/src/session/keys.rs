//! The names that `GET_LOCK` gets: at most 64 characters, which MySQL compares without regard to case.

use std::fmt;
use std::str::FromStr;

use hmac_sha256::Hash as Sha256;
use lockkeeper_backend::{BackendError, BackendErrorKind, hex};
use sha2::{Digest, Sha512};

/// The longest name that both servers accept, in characters.
const LENGTH: usize = 64;
/// Letters and digits of 160 bits, five each.
const HASH_LENGTH: usize = 32;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// How a lock's name becomes a name of the server (`key=`).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum KeyRule {
    /// `lockkeeper`, the default: `lockkeeper/NAME`, or a hash of the name if that is too long, or has other
    /// characters than small letters of ASCII, digits and `/._-`.
    #[default]
    Lockkeeper,
    /// `raw`: the name itself.
    Raw,
    /// `madelson`: `MySqlDistributedLock(name, …)` of `DistributedLock` (.NET).
    Madelson,
    /// `ruby`, `ruby:PREFIX`: the gem `with_advisory_lock`, with the prefix of the environment variable
    /// `WITH_ADVISORY_LOCK_PREFIX`.
    Ruby(String),
}

pub(super) const WANTED: &str = "a rule for names: `lockkeeper`, `raw`, `madelson`, `ruby` or `ruby:PREFIX`";

impl FromStr for KeyRule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "lockkeeper" => Ok(Self::Lockkeeper),
            "raw" => Ok(Self::Raw),
            "madelson" => Ok(Self::Madelson),
            "ruby" => Ok(Self::Ruby(String::new())),
            _ => text.strip_prefix("ruby:").map(|prefix| Self::Ruby(prefix.to_owned())).ok_or(()),
        }
    }
}

impl fmt::Display for KeyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lockkeeper => f.write_str("lockkeeper"),
            Self::Raw => f.write_str("raw"),
            Self::Madelson => f.write_str("madelson"),
            Self::Ruby(prefix) if prefix.is_empty() => f.write_str("ruby"),
            Self::Ruby(prefix) => write!(f, "ruby:{prefix}"),
        }
    }
}

impl KeyRule {
    /// The server's name of a lock.
    ///
    /// # Errors
    /// The name is too long for the rule, or has characters that the rule does not map for certain.
    pub(super) fn key(&self, name: &str) -> Result<String, BackendError> {
        match self {
            Self::Lockkeeper => {
                let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-');
                let key = format!("lockkeeper/{name}");
                if key.len() <= LENGTH && name.bytes().all(plain) {
                    return Ok(key);
                }
                let mut key = format!("lockkeeper#{}", hex(&Sha256::hash(name.as_bytes())));
                key.truncate(LENGTH);
                Ok(key)
            }
            Self::Raw => self.short(name.to_owned()),
            Self::Ruby(prefix) => self.short(format!("{prefix}{name}")),
            Self::Madelson if !name.is_ascii() => {
                let what =
                    format!("`{name}` has other characters than ASCII, which `key=madelson` can't map");
                Err(BackendError::new(BackendErrorKind::Refused, what))
            }
            Self::Madelson => Ok(madelson(name)),
        }
    }

    fn short(&self, key: String) -> Result<String, BackendError> {
        let length = key.chars().count();
        if length <= LENGTH {
            return Ok(key);
        }
        let what = format!(
            "`{key}` has {length} characters, and GET_LOCK takes {LENGTH}: choose a shorter name, or leave out `key={self}`, \
             which hashes long names"
        );
        Err(BackendError::new(BackendErrorKind::Refused, what))
    }
}

/// Small letters, and for a name that is long or has others, a prefix of it and a hash.
fn madelson(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    if lower == name && name.len() <= LENGTH {
        return lower;
    }
    let digest = Sha512::digest(name.as_bytes());
    let (mut bits, mut count, mut bytes) = (0_u32, 0, digest.iter());
    let hash = (0..HASH_LENGTH).map(|_| {
        if count < 5 {
            bits |= u32::from(*bytes.next().unwrap_or(&0)) << count;
            count += 8;
        }
        let letter = BASE32[(bits & 31) as usize];
        bits >>= 5;
        count -= 5;
        char::from(letter)
    });
    let prefix = &lower[..lower.len().min(LENGTH - HASH_LENGTH)];
    prefix.chars().chain(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rule: &str, name: &str) -> Result<String, String> {
        rule.parse::<KeyRule>().unwrap().key(name).map_err(|error| error.to_string())
    }

    #[test]
    fn a_name_that_the_server_would_confuse_is_hashed() {
        assert_eq!(key("lockkeeper", "orders/42"), Ok("lockkeeper/orders/42".into()));
        let names = ["Orders/42", "ORDERS/42", "órders/42", "orders 42", &"a".repeat(54), &"a".repeat(300)];
        let keys: Vec<String> = names.iter().map(|name| key("lockkeeper", name).unwrap()).collect();
        for (at, hashed) in keys.iter().enumerate() {
            assert!(hashed.starts_with("lockkeeper#") && hashed.len() == 64, "{hashed}");
            assert!(!keys[..at].contains(hashed), "{}: {hashed}", names[at]);
        }
        assert_eq!(key("lockkeeper", &"a".repeat(53)).unwrap().len(), 64);
    }

    #[test]
    fn names_of_others_are_mapped_as_they_map_them() {
        assert_eq!(key("raw", "a B"), Ok("a B".into()));
        assert_eq!(key("ruby:staging-", "job"), Ok("staging-job".into()));
        assert!(key("raw", &"a".repeat(65)).unwrap_err().contains("65 characters"));
        assert!(key("ruby:12345", &"a".repeat(60)).unwrap_err().contains("key=ruby:12345"));
        // Computed with Python's hashlib by the rule that DistributedLock publishes.
        assert_eq!(key("madelson", "orders"), Ok("orders".into()));
        assert_eq!(key("madelson", "Orders"), Ok("orders7col6v7a2vpxbxbpw2bcg5rzsgfwgenc".into()));
        assert_eq!(
            key("madelson", &"x".repeat(65)),
            Ok("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxgkd2zq6c6ey6mhs45clqg7vij6ycgo43".into())
        );
        assert!(key("madelson", "é").unwrap_err().contains("ASCII"));
    }

    #[test]
    fn rules_are_shown_as_they_are_written() {
        for rule in ["lockkeeper", "raw", "madelson", "ruby", "ruby:p"] {
            assert_eq!(rule.parse::<KeyRule>().unwrap().to_string(), rule);
        }
        assert!("hash".parse::<KeyRule>().is_err());
    }
}
