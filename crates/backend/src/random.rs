//! Random bytes of the system, and bytes as text.

use crate::error::{BackendError, BackendErrorKind};

/// Random bytes that no other process draws.
///
/// # Errors
/// The system gives none.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], BackendError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        let what = format!("the system gives no random bytes: {error}");
        BackendError::new(BackendErrorKind::Operator, what)
    })?;
    Ok(bytes)
}

/// The bytes in hexadecimal digits, lower case.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
