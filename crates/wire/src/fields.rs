//! Conversion of single fields: numbers, names and modes that may be out of range.

use lockkeeper_core::{LockName, Mode, ModeKind, Token, limits};

use crate::v1;

/// Bytes or values that are not valid in this version. The sender's software is faulty, or newer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub(crate) String);

pub(crate) fn malformed<T>(what: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(what.into()))
}

pub(crate) fn name(text: &str) -> Result<LockName, Malformed> {
    LockName::parse(text).map_err(|error| Malformed(error.to_string()))
}

pub(crate) fn names(texts: &[String]) -> Result<Vec<LockName>, Malformed> {
    texts.iter().map(|text| name(text)).collect()
}

pub(crate) fn token(value: u64) -> Result<Token, Malformed> {
    Token::new(value).ok_or_else(|| Malformed(format!("{value} is no token: 1 to {} are", limits::TOKEN_MAX)))
}

pub(crate) fn mode(mode: i32, permits: Option<u32>) -> Result<Mode, Malformed> {
    match v1::Mode::try_from(mode) {
        Ok(v1::Mode::Exclusive) => Ok(Mode::Exclusive),
        Ok(v1::Mode::Shared) => Ok(Mode::Shared),
        Ok(v1::Mode::Permit) => Ok(Mode::Permit { of: permits }),
        Ok(v1::Mode::Unspecified) | Err(_) => malformed(format!("mode {mode} is unknown")),
    }
}

/// The mode's value in the schema.
#[must_use]
pub fn mode_number(kind: ModeKind) -> v1::Mode {
    match kind {
        ModeKind::Exclusive => v1::Mode::Exclusive,
        ModeKind::Shared => v1::Mode::Shared,
        ModeKind::Permit => v1::Mode::Permit,
    }
}

pub(crate) fn array<const N: usize>(bytes: &[u8], what: &str) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| Malformed(format!("{what} has {} bytes, it must have {N}", bytes.len())))
}
