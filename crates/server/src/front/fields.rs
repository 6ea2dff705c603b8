//! Parses and checks request fields that several calls share.

use lockkeeper_core::{LockName, Token, limits};
use tonic::Status;

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1000;

pub(super) fn name(field: &str, text: &str) -> Result<LockName, Status> {
    LockName::parse(text).map_err(|error| Status::invalid_argument(format!("`{field}`: {error}")))
}

/// Parses an optional name; an empty text means none.
pub(super) fn optional_name(field: &str, text: &str) -> Result<Option<LockName>, Status> {
    if text.is_empty() { Ok(None) } else { name(field, text).map(Some) }
}

pub(super) fn page(field: &str, asked: u32) -> Result<usize, Status> {
    match asked {
        0 => Ok(PAGE_DEFAULT as usize),
        1..=PAGE_MAX => Ok(asked as usize),
        _ => Err(Status::invalid_argument(format!(
            "`{field}` is {asked}, at most {PAGE_MAX} are allowed; 0 stands for {PAGE_DEFAULT}; ask page by page"
        ))),
    }
}

pub(super) fn token(value: u64) -> Result<Token, Status> {
    Token::new(value).ok_or_else(|| {
        Status::invalid_argument(format!("`token` is {value}; tokens are 1 to {}", limits::TOKEN_MAX))
    })
}
