//! Credentials in files that are replaced while the program runs: passwords, tokens, certificates.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

/// A credential that is read again whenever it is used, which is for each new connection. While it can't be
/// read (its file may be half written), the one that was read last stays in use.
pub struct Rotated<T>(Mutex<T>);

impl<T: Clone> Rotated<T> {
    /// A credential that was read once.
    pub fn new(first: T) -> Self {
        Self(Mutex::new(first))
    }

    /// Reads the credential; `read` gets the one that was read last. `what` names it in the log.
    pub fn latest<E: Display>(&self, what: &str, read: impl FnOnce(&T) -> Result<T, E>) -> T {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match read(&current) {
            Ok(new) => *current = new,
            Err(error) => tracing::warn!(%error, "lockkeeper: the {what} in use stays in use: {error}"),
        }
        current.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_credential_that_could_be_read_is_used() {
        let rotated = Rotated::new("first");
        assert_eq!(rotated.latest("password", |_| Err::<&str, _>("half written")), "first");
        assert_eq!(rotated.latest("password", |_| Ok::<_, &str>("second")), "second");
        assert_eq!(
            rotated.latest("password", |now| if *now == "second" { Err("gone") } else { Ok("") }),
            "second"
        );
    }
}
