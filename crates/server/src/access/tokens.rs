//! Bearer tokens: secrets by which callers without a certificate identify themselves.
//!
//! A file has one token per line, `NAME:SALT:HASH`, the last two in hexadecimal digits; lines that are empty
//! or begin with `#` are ignored. The hash is the SHA-256 of salt and secret. A fast hash suffices, since a
//! secret has 256 random bits.

use std::collections::HashMap;
use std::fmt;

use lockkeeper_core::limits::LABEL_BYTES_MAX;
use subtle::ConstantTimeEq;

use super::identity::{Identity, IdentityError};
use crate::hex::{hex, unhex};

/// How a token begins, so that scanners for secrets can find it.
const PREFIX: &str = "lkt.";
const SALT_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
const HASH_BYTES: usize = 32;
/// Longest text that is parsed as a token.
const TOKEN_CHARS_MAX: usize = PREFIX.len() + LABEL_BYTES_MAX + 1 + 2 * SECRET_BYTES;

/// The id of a token: its hash in the file, which is not secret. Another token of the same name has another
/// id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TokenId([u8; HASH_BYTES]);

/// The tokens of a file, by the names of their callers.
#[derive(Default)]
pub(crate) struct Tokens(HashMap<String, Stored>);

struct Stored {
    identity: Identity,
    salt: [u8; SALT_BYTES],
    hash: [u8; HASH_BYTES],
}

/// A new token: the text for the caller, and the line for the nodes' files.
pub struct NewToken {
    /// What the caller shows: `lkt.NAME.SECRET`.
    pub token: String,
    /// The line of the nodes' files.
    pub line: String,
}

/// Without the secret.
impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewToken").field("line", &self.line).finish_non_exhaustive()
    }
}

/// Why there is no new token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NewTokenError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] IdentityError),
    /// The name has a character that the file uses for itself, or that can't be sent.
    #[error("the name of a token may have ASCII characters only, without `:` and `#`: {0:?}")]
    Character(String),
    /// The system's random number generator failed.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

impl NewToken {
    /// Makes a token of 256 random bits for a caller.
    ///
    /// # Errors
    /// [`NewTokenError`].
    pub fn make(name: &str) -> Result<Self, NewTokenError> {
        let identity = Identity::new(name)?;
        // The token is sent in a header, which has no other characters.
        if name.contains([':', '#']) || !name.is_ascii() {
            return Err(NewTokenError::Character(name.to_owned()));
        }
        let (mut salt, mut secret) = ([0; SALT_BYTES], [0; SECRET_BYTES]);
        for bytes in [&mut salt[..], &mut secret[..]] {
            getrandom::fill(bytes).map_err(|error| NewTokenError::Random(error.to_string()))?;
        }
        Ok(Self {
            token: format!("{PREFIX}{identity}.{}", hex(&secret)),
            line: format!("{identity}:{}:{}", hex(&salt), hex(&hash(&salt, &secret))),
        })
    }
}

impl Tokens {
    /// Reads the lines of a file.
    ///
    /// # Errors
    /// The first line that is wrong, and why.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |why: String| format!("line {}: {why}", number + 1);
            let fields: Vec<&str> = line.split(':').collect();
            let [name, salt, hash] = fields[..] else {
                return Err(at("it is not `NAME:SALT:HASH`, as `lockkeeper token add` writes it".to_owned()));
            };
            let identity = Identity::new(name).map_err(|error| at(error.to_string()))?;
            let (Some(salt), Some(hash)) = (unhex(salt.as_bytes()), unhex(hash.as_bytes())) else {
                return Err(at(format!(
                    "the salt has {} hexadecimal digits, the hash {}; {} and {} are needed",
                    salt.len(),
                    hash.len(),
                    2 * SALT_BYTES,
                    2 * HASH_BYTES
                )));
            };
            if tokens.insert(name.to_owned(), Stored { identity, salt, hash }).is_some() {
                return Err(at(format!("`{name}` has a token already; each name has one")));
            }
        }
        Ok(Self(tokens))
    }

    /// The caller that shows this token; `None` if there is none. The time does not depend on the secret.
    pub(crate) fn caller(&self, token: &str) -> Option<(Identity, TokenId)> {
        if token.len() > TOKEN_CHARS_MAX {
            return None;
        }
        let (name, secret) = token.strip_prefix(PREFIX)?.rsplit_once('.')?;
        let secret: [u8; SECRET_BYTES] = unhex(secret.as_bytes())?;
        let stored = self.0.get(name)?;
        let is_it = hash(&stored.salt, &secret).ct_eq(&stored.hash);
        bool::from(is_it).then(|| (stored.identity.clone(), TokenId(stored.hash)))
    }

    /// Whether the file has this token of the caller.
    pub(crate) fn has(&self, caller: &Identity, token: &TokenId) -> bool {
        self.0.get(caller.as_str()).is_some_and(|stored| stored.hash == token.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

fn hash(salt: &[u8; SALT_BYTES], secret: &[u8; SECRET_BYTES]) -> [u8; HASH_BYTES] {
    hmac_sha256::Hash::hash(&[salt.as_slice(), secret].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_identifies_its_caller_and_no_other_text_does() {
        let [one, two] = ["billing.v2", "reports"].map(|name| NewToken::make(name).unwrap());
        let tokens = Tokens::parse(&format!("# comment\n\n{}\n {}\n", one.line, two.line)).unwrap();
        assert_eq!(tokens.caller(&one.token).unwrap().0.as_str(), "billing.v2");
        assert_eq!(tokens.caller(&two.token).unwrap().0.as_str(), "reports");
        let secret = |token: &str| token.rsplit_once('.').unwrap().1.to_owned();
        for other in [
            format!("lkt.billing.v2.{}", secret(&two.token)),
            format!("lkt.nobody.{}", secret(&one.token)),
            one.token[..one.token.len() - 1].to_owned(),
            format!("{}0", one.token),
            one.line.clone(),
            "é".repeat(40),
            String::new(),
            "lkt.".to_owned() + &"x".repeat(100_000),
        ] {
            assert_eq!(tokens.caller(&other), None, "{other}");
        }
        assert!(!one.line.contains(&secret(&one.token)) && !format!("{one:?}").contains(&secret(&one.token)));
    }

    #[test]
    fn wrong_line_is_named() {
        let good = NewToken::make("a").unwrap().line;
        for (text, why) in [
            (format!("{good}\nb"), "line 2: it is not `NAME:SALT:HASH`"),
            (format!("{good}\n{good}"), "line 2: `a` has a token already"),
            (
                "b:12:34".to_owned(),
                "line 1: the salt has 2 hexadecimal digits, the hash 2; 32 and 64 are needed",
            ),
            (good.replacen("a:", "anonymous:", 1), "line 1: the name `anonymous`"),
        ] {
            let error = Tokens::parse(&text).err().unwrap_or_default();
            assert!(error.starts_with(why), "{error}");
        }
        for name in ["a:b", "#a", "Müller"] {
            assert!(matches!(NewToken::make(name), Err(NewTokenError::Character(_))), "{name}");
        }
    }
}
