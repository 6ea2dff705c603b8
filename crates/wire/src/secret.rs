//! A session's secret, and why no log, error or panic message contains one.

use std::fmt;

use crate::fields::{self, Malformed};
use crate::v1;

/// The secret of a session: whoever knows it may attach the session to a stream of their own. `Debug` does
/// not print it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl Secret {
    /// Reads a secret as it is on the wire.
    ///
    /// # Errors
    /// There are not 16 bytes.
    pub fn from_wire(bytes: &[u8]) -> Result<Self, Malformed> {
        fields::array(bytes, "a session's secret").map(Self)
    }

    /// The first 8 bytes, little-endian: distinguishes the `open`s of one stream without repeating the
    /// secret.
    #[must_use]
    pub fn prefix(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|index| self.0[index]))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Without the secret, which the generated implementation would print.
impl fmt::Debug for v1::OpenSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { secret: _, ttl_ms, lock_delay_ms, linger_ms, label, attach } = self;
        f.debug_struct("OpenSession")
            .field("ttl_ms", ttl_ms)
            .field("lock_delay_ms", lock_delay_ms)
            .field("linger_ms", linger_ms)
            .field("label", label)
            .field("attach", attach)
            .finish_non_exhaustive()
    }
}

/// Without the secret, which the generated implementation would print.
impl fmt::Debug for v1::AttachSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { secret: _, attach } = self;
        f.debug_struct("AttachSession").field("attach", attach).finish_non_exhaustive()
    }
}

/// Without the secret, which the generated implementation would print.
impl fmt::Debug for v1::SessionCallRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { secret: _, item, poll_ms, waiting, known } = self;
        f.debug_struct("SessionCallRequest")
            .field("item", item)
            .field("poll_ms", poll_ms)
            .field("waiting", waiting)
            .field("known", known)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;

    #[test]
    fn debug_never_prints_a_secret() {
        let secret = vec![222; 16];
        let open = v1::OpenSession { secret: secret.clone(), label: "cron".into(), ..Default::default() };
        let attach = v1::AttachSession { secret, attach: 3 };
        for what in [v1::client_item::What::Open(open), v1::client_item::What::Attach(attach)] {
            let item = v1::ClientItem { session: 1, what: Some(what) };
            let call = v1::SessionCallRequest {
                secret: vec![222; 16],
                item: Some(item.clone()),
                ..v1::SessionCallRequest::default()
            };
            let mut texts = vec![format!("{item:?}"), format!("{call:?}")];
            if let Ok(request) = Request::try_from(item) {
                texts.push(format!("{request:?}"));
            }
            for text in texts {
                assert!(text.contains("Open") || text.contains("Attach"), "{text}");
                assert!(!text.contains("222"), "{text}");
            }
        }
    }
}
