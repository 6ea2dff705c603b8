//! Whether the content of a command is within [`limits`], whatever table it is for.
//!
//! Responsible for being the one check of content: the library runs it before it sends, the service when it reads an
//! item, and the table when it applies a command. The same content is refused everywhere, in the same words.

use crate::command::{Acquire, OpenSession};
use crate::limits;
use crate::reply::Rejection;
use crate::types::Mode;

/// The content of an [`Acquire`] that has a limit.
#[derive(Clone, Copy, Debug)]
pub struct AcquireContent {
    /// How many names, before they are merged (N1).
    pub names: usize,
    /// How to hold them.
    pub mode: Mode,
    /// Cover everything below the names too.
    pub subtree: bool,
    /// In milliseconds.
    pub keep_closed_ms: u64,
    /// Length of the value.
    pub value_bytes: usize,
    /// Length of the meta data.
    pub meta_bytes: usize,
}

/// The content of an [`OpenSession`] that has a limit. Durations are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct SessionContent {
    /// How long the session lives without a keep-alive.
    pub ttl_ms: u64,
    /// How long its holds stay closed if it expires.
    pub lock_delay_ms: u64,
    /// The time left after its stream was closed.
    pub linger_ms: u64,
    /// Length of the label.
    pub label_bytes: usize,
}

impl AcquireContent {
    /// Checks in the order of rule R7.
    ///
    /// # Errors
    /// The first limit that is passed, with the value.
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
        }
    }
}

impl SessionContent {
    /// Checks all of it.
    ///
    /// # Errors
    /// The first limit that is passed, with the value.
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
        text("label", self.label_bytes)
    }
}

impl From<&OpenSession> for SessionContent {
    fn from(open: &OpenSession) -> Self {
        Self {
            ttl_ms: open.ttl_ms,
            lock_delay_ms: open.lock_delay_ms,
            linger_ms: open.linger_ms,
            label_bytes: open.label.len(),
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

/// Checks why a hold is broken, and by whom.
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
