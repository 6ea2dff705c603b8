//! Fenced or unfenced: decided once, when the client is made, and then a matter of types (P11).

mod sealed {
    pub trait Sealed {}
}

/// [`Fenced`] or [`Unfenced`].
pub trait Kind: sealed::Sealed + Copy + Send + Sync + Unpin + 'static {}

/// Every hold has a fencing token: `guard.token()` exists.
#[derive(Clone, Copy, Debug)]
pub enum Fenced {}

/// Holds may have no token: there is no `token()` to call.
#[derive(Clone, Copy, Debug)]
pub enum Unfenced {}

impl sealed::Sealed for Fenced {}
impl sealed::Sealed for Unfenced {}
impl Kind for Fenced {}
impl Kind for Unfenced {}
