//! A held lock: what it may still be relied on for, and how it is given back.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{PermitGrant, Slot, Token};
use tokio_util::sync::CancellationToken;

use crate::error::{LossCause, Lost, ReleaseError, VerifyError};
use crate::kind::{Fenced, Kind};
use crate::machine::Releasing;
use crate::observe;
use crate::session::HoldHandle;
use crate::time::BootInstant;

/// A held lock. Dropping it releases the lock in the background; [`Guard::release`] says whether that went well.
///
/// Not tied to a thread or a task. The hold can be lost at any time, so that work under it must be able to stop
/// ([`Guard::lost`]) and writes must carry [`Guard::token`] to a fence.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<F: Kind> {
    inner: Arc<Inner>,
    kind: PhantomData<F>,
}

struct Inner {
    backend: &'static str,
    hold: HoldHandle,
}

impl<F: Kind> Guard<F> {
    pub(crate) fn new(backend: &'static str, hold: HoldHandle) -> Self {
        Self { inner: Arc::new(Inner { backend, hold }), kind: PhantomData }
    }

    /// Fires when the hold is lost: at its deadline at the latest, from a timer that waits for no I/O (P5).
    #[must_use]
    pub fn lost(&self) -> CancellationToken {
        self.inner.hold.lost().clone()
    }

    /// Why the hold is lost, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<LossCause> {
        self.valid_until().err().map(|lost| lost.cause)
    }

    /// Until when the hold may be relied on; later, as keep-alives are acknowledged. `None`: it has no deadline.
    ///
    /// # Errors
    /// [`Lost`] if that moment has come.
    pub fn valid_until(&self) -> Result<Option<BootInstant>, Lost> {
        self.inner.hold.valid_until()
    }

    /// Waits until [`Guard::valid_until`] is another than `known`, and returns it: for those who pass the deadline on to
    /// another process. Cancel-safe.
    ///
    /// # Errors
    /// [`Lost`] once the hold is.
    pub async fn valid_until_changes(&self, known: Option<BootInstant>) -> Result<Option<BootInstant>, Lost> {
        self.inner.hold.valid_until_changes(known).await
    }

    /// Whether the hold can be relied on for `need` more, as far as this process knows. No I/O.
    ///
    /// # Errors
    /// [`Lost`], with [`LossCause::Expired`] also where it is merely too short.
    pub fn check(&self, need: Duration) -> Result<(), Lost> {
        match self.valid_until()? {
            Some(until) if until - self.inner.hold.now() < need => Err(Lost { cause: LossCause::Expired }),
            _ => Ok(()),
        }
    }

    /// Asks the lock service whether the hold is live. One round trip. The answer is old when it arrives: only a
    /// fence decides.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub async fn verify(&self) -> Result<(), VerifyError> {
        self.inner.hold.verify().await
    }

    /// The first permit's number, for a permit.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        self.permits().first().map(|permit| permit.slot)
    }

    /// Permit and limit, one a name in byte order; empty for other modes.
    #[must_use]
    pub fn permits(&self) -> &[PermitGrant] {
        &self.inner.hold.granted.permits
    }

    /// The token as a number for display and logs; `None` where the backend has none. To fence writes, connect with
    /// [`Locks::fenced`](crate::Locks::fenced) and use [`Guard::token`].
    #[must_use]
    pub fn token_hint(&self) -> Option<Token> {
        self.inner.hold.granted.token
    }

    /// The same hold once more, for code that is called under it and takes a guard of its own. It is released when
    /// the last of them is.
    pub fn reenter(&self) -> Self {
        Self { inner: self.inner.clone(), kind: PhantomData }
    }

    /// Gives the lock back and waits for the answer. With guards from [`Guard::reenter`] left, only drops this one.
    ///
    /// Dropping the future goes on releasing in the background.
    ///
    /// # Errors
    /// [`ReleaseError::AlreadyLost`] if it was lost before: check what was written meanwhile.
    /// [`ReleaseError::Ambiguous`] if no answer came.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let Some(Inner { backend, hold }) = Arc::into_inner(self.inner) else { return Ok(()) };
        observe::released(backend, hold.now() - hold.since);
        let lost = hold.valid_until().err();
        match (lost, hold.release().await) {
            (Some(lost), _) => Err(ReleaseError::AlreadyLost(lost.cause)),
            (None, Releasing::Released) => Ok(()),
            (None, Releasing::AlreadyLost(cause)) => Err(ReleaseError::AlreadyLost(cause)),
            (None, Releasing::Ambiguous) => Err(ReleaseError::Ambiguous),
        }
    }

    /// Descriptors that keep this hold alive in whatever process has them, also after this one has died (`file:`).
    /// They stay this guard's: duplicate or inherit them, don't close them. Empty where no descriptor holds the lock.
    #[must_use]
    pub fn descriptors(&self) -> Vec<std::os::fd::RawFd> {
        self.inner.hold.descriptors()
    }

    pub(crate) fn held(&self) -> Held<'_, F> {
        Held { guard: self }
    }
}

impl Guard<Fenced> {
    /// The fencing token of this hold: higher than every earlier hold's (P2). Send it along with every write.
    #[must_use]
    pub fn token(&self) -> Token {
        let token = self.inner.hold.granted.token;
        token.expect("a client that was made `fenced()` only hands out grants with tokens")
    }
}

impl<F: Kind> fmt::Debug for Guard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("token", &self.token_hint())
            .field("permits", &self.permits())
            .field("lost", &self.loss())
            .finish()
    }
}

/// A lock that is held for as long as the body of [`Lock::run`](crate::Lock::run) runs.
#[derive(Clone, Copy)]
pub struct Held<'a, F: Kind> {
    guard: &'a Guard<F>,
}

impl<F: Kind> std::ops::Deref for Held<'_, F> {
    type Target = Guard<F>;
    fn deref(&self) -> &Guard<F> {
        self.guard
    }
}
