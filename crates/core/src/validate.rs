//! Checks of a command's content against [`limits`], independent of any table.
//!
//! This is the only check of content: the library runs it before it sends a request, the service when it
//! decodes a client's item, and the table when it applies a command. All three refuse the same content with
//! the same error text.

use crate::command::{Acquire, OpenSession};
use crate::limits;
use crate::reply::Rejection;
use crate::types::Mode;

/// The limited fields of an [`Acquire`].
#[derive(Clone, Copy, Debug)]
pub struct AcquireContent {
    /// Number of names before merging (N1).
    pub names: usize,
    /// Requested mode.
    pub mode: Mode,
    /// Whether the request covers all names below its names too.
    pub subtree: bool,
    /// `keep_closed` in milliseconds.
    pub keep_closed_ms: u64,
    /// Length of the value in bytes.
    pub value_bytes: usize,
    /// Length of the meta data in bytes.
    pub meta_bytes: usize,
    /// Number of tokens beyond the first.
    pub spare_tokens: u32,
    /// Number of tokens that the caller declares as held.
    pub holding: usize,
}

/// The limited fields of an [`OpenSession`]. Durations are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct SessionContent {
    /// Time until expiry without a keep-alive.
    pub ttl_ms: u64,
    /// Time for which the session's holds stay closed if it expires.
    pub lock_delay_ms: u64,
    /// Time until expiry after the client closed its stream.
    pub linger_ms: u64,
    /// Length of the label in bytes.
    pub label_bytes: usize,
    /// Length of the identity in bytes.
    pub identity_bytes: usize,
}

impl AcquireContent {
    /// Checks all fields, in the order of rule R7.
    ///
    /// # Errors
    /// The first violated limit, with the value.
    pub fn check(&self) -> Result<(), Rejection> {
        let count = self.names;
        if count == 0 || count > limits::NAMES_PER_REQUEST_MAX {
            return Err(Rejection::NameCount { count });
        }
        if let Mode::Permit { of } = self.mode {
            if self.subtree {
                return Err(Rejection::PermitSubtree);
            }
            of.map_or(Ok(()), permits)?;
        }
        if self.keep_closed_ms > limits::KEEP_CLOSED_MS_MAX {
            return Err(Rejection::KeepClosed { ms: self.keep_closed_ms });
        }
        value(self.value_bytes)?;
        if self.meta_bytes > limits::META_BYTES_MAX {
            return Err(Rejection::MetaTooLong { bytes: self.meta_bytes });
        }
        if self.spare_tokens > limits::SPARE_TOKENS_MAX {
            return Err(Rejection::SpareTokens { asked: self.spare_tokens });
        }
        if self.spare_tokens > 0 && (self.mode != Mode::Exclusive || self.keep_closed_ms > 0) {
            return Err(Rejection::NotCacheable);
        }
        if self.holding > limits::HOLDING_MAX {
            return Err(Rejection::HoldingCount { count: self.holding });
        }
        Ok(())
    }
}

impl From<&Acquire> for AcquireContent {
    fn from(acquire: &Acquire) -> Self {
        Self {
            names: acquire.names.len(),
            mode: acquire.mode,
            subtree: acquire.subtree,
            keep_closed_ms: acquire.keep_closed_ms,
            value_bytes: acquire.value.len(),
            meta_bytes: acquire.meta.len(),
            spare_tokens: acquire.spare_tokens,
            holding: acquire.holding.len(),
        }
    }
}

impl SessionContent {
    /// Checks all fields, in the order of rule S1.
    ///
    /// # Errors
    /// The first violated limit, with the value.
    pub fn check(&self) -> Result<(), Rejection> {
        if !(limits::TTL_MS_MIN..=limits::TTL_MS_MAX).contains(&self.ttl_ms) {
            return Err(Rejection::Ttl { ms: self.ttl_ms });
        }
        if self.lock_delay_ms > limits::LOCK_DELAY_MS_MAX {
            return Err(Rejection::LockDelay { ms: self.lock_delay_ms });
        }
        if self.linger_ms > self.ttl_ms {
            return Err(Rejection::Linger { ms: self.linger_ms, ttl_ms: self.ttl_ms });
        }
        text("label", self.label_bytes)?;
        text("identity", self.identity_bytes)
    }
}

impl From<&OpenSession> for SessionContent {
    fn from(open: &OpenSession) -> Self {
        Self {
            ttl_ms: open.ttl_ms,
            lock_delay_ms: open.lock_delay_ms,
            linger_ms: open.linger_ms,
            label_bytes: open.label.len(),
            identity_bytes: open.identity.len(),
        }
    }
}

/// Checks the length of a value.
///
/// # Errors
/// [`Rejection::ValueTooLong`].
pub fn value(bytes: usize) -> Result<(), Rejection> {
    if bytes > limits::VALUE_BYTES_MAX { Err(Rejection::ValueTooLong { bytes }) } else { Ok(()) }
}

fn text(field: &'static str, bytes: usize) -> Result<(), Rejection> {
    if bytes > limits::LABEL_BYTES_MAX { Err(Rejection::TextTooLong { field, bytes }) } else { Ok(()) }
}

/// Checks the lengths of a break's reason and author.
///
/// # Errors
/// [`Rejection::TextTooLong`].
pub fn break_texts(reason: &str, by: &str) -> Result<(), Rejection> {
    text("reason", reason.len())?;
    text("by", by.len())
}

/// Checks a number of permits.
///
/// # Errors
/// [`Rejection::PermitCount`].
pub fn permits(of: u32) -> Result<(), Rejection> {
    if (1..=limits::PERMITS_MAX).contains(&of) { Ok(()) } else { Err(Rejection::PermitCount { of }) }
}
