//! Who a caller is.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::limits::LABEL_BYTES_MAX;

/// A caller's name, from its certificate or its token; empty for a caller that has shown neither.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Identity(Option<Arc<str>>);

/// How the permissions name a caller that has shown neither a certificate nor a token.
pub(super) const ANONYMOUS: &str = "anonymous";

/// Why a text is no identity.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    /// The text is empty.
    #[error("a name is empty")]
    Empty,
    /// The text is longer than [`LABEL_BYTES_MAX`].
    #[error("the name has {0} bytes, at most {LABEL_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// The text has a character that a name may not have.
    #[error("the name {0:?} has {1:?}: white space, control characters and `*` are not allowed")]
    Character(String, char),
    /// The text is reserved.
    #[error("the name `{ANONYMOUS}` stands for callers that have shown neither a certificate nor a token")]
    Reserved,
}

impl Identity {
    /// The identity of a caller that has shown neither a certificate nor a token.
    pub const ANONYMOUS: Self = Self(None);

    /// Checks a name: 1 to 256 bytes without white space, control characters and `*`, and not `anonymous`.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn new(name: &str) -> Result<Self, IdentityError> {
        if name.is_empty() {
            return Err(IdentityError::Empty);
        }
        if name.len() > LABEL_BYTES_MAX {
            return Err(IdentityError::TooLong(name.len()));
        }
        if let Some(wrong) = name.chars().find(|it| it.is_whitespace() || it.is_control() || *it == '*') {
            return Err(IdentityError::Character(name.to_owned(), wrong));
        }
        if name == ANONYMOUS {
            return Err(IdentityError::Reserved);
        }
        Ok(Self(Some(name.into())))
    }

    /// The name; empty for [`Identity::ANONYMOUS`].
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or(ANONYMOUS))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_printable_names_of_bounded_length_are_identities() {
        for good in ["billing", "lockkeeper:client/billing", "spiffe://shop/ns/a", "Müller", &"x".repeat(256)]
        {
            assert_eq!(Identity::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "anonymous", "a b", "a\n", "a*", "a\u{7f}", &"x".repeat(257)] {
            assert!(Identity::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!((Identity::ANONYMOUS.as_str(), &*Identity::ANONYMOUS.to_string()), ("", ANONYMOUS));
    }
}
