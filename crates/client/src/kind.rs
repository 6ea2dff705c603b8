//! Fenced or unfenced clients: checked once when the client is created, and then encoded in the types (P11).

mod sealed {
    pub trait Sealed {}
}

/// [`Fenced`] or [`Unfenced`].
pub trait Kind: sealed::Sealed + Copy + Send + Sync + Unpin + 'static {}

/// Every hold has a fencing token: `guard.token()` exists.
#[derive(Clone, Copy, Debug)]
pub enum Fenced {}

/// Holds may have no token; `guard.token()` does not exist.
#[derive(Clone, Copy, Debug)]
pub enum Unfenced {}

impl sealed::Sealed for Fenced {}
impl sealed::Sealed for Unfenced {}
impl Kind for Fenced {}
impl Kind for Unfenced {}
