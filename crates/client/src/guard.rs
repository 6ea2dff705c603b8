//! A held lock: its validity and its release.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{BootInstant, HoldChange, LossCause};
use lockkeeper_core::{LockName, ModeKind, PermitGrant, Slot, Token};
use tokio_util::sync::CancellationToken;

use crate::error::{ChangeError, Lost, ReleaseError, VerifyError};
use crate::kind::{Fenced, Kind, Unfenced};
use crate::recorder::Recorder;
use crate::session::HoldHandle;

/// A held lock. Dropping it releases the lock in the background; [`Guard::release`] returns the result.
///
/// Not tied to a thread or a task. The hold can be lost at any time, so work under it must be able to stop
/// ([`Guard::lost`]) and writes must carry [`Guard::token`] to a fence.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<F: Kind = Unfenced> {
    inner: Arc<HoldHandle>,
    kind: PhantomData<F>,
}

impl<F: Kind> Guard<F> {
    pub(crate) fn new(hold: HoldHandle) -> Self {
        Self { inner: Arc::new(hold), kind: PhantomData }
    }

    /// Writes the grant to the client's history; `false` if the hold is lost already.
    pub(crate) fn record(
        &mut self,
        recorder: &Recorder,
        names: &[LockName],
        (mode, subtree): (ModeKind, bool),
        asked: BootInstant,
    ) -> bool {
        // Nobody has another guard of it yet.
        Arc::get_mut(&mut self.inner).is_some_and(|hold| hold.record(recorder, names, (mode, subtree), asked))
    }

    /// Fires when the hold is lost: no later than its deadline, from a timer that does not depend on I/O
    /// (P5).
    #[must_use]
    pub fn lost(&self) -> CancellationToken {
        self.inner.lost().clone()
    }

    /// The cause of the loss, if the hold is lost.
    #[must_use]
    pub fn loss(&self) -> Option<LossCause> {
        self.valid_until().err().map(|lost| lost.cause)
    }

    /// The hold's deadline, which moves forward as keep-alives are acknowledged. `None` if the hold has no
    /// deadline.
    ///
    /// # Errors
    /// [`Lost`] if the hold is lost, for any cause.
    pub fn valid_until(&self) -> Result<Option<BootInstant>, Lost> {
        self.inner.valid_until()
    }

    /// Waits until [`Guard::valid_until`] differs from `known`, and returns it: for programs that pass the
    /// deadline on to another process. Cancel-safe.
    ///
    /// # Errors
    /// [`Lost`] once the hold is lost.
    pub async fn valid_until_changes(&self, known: Option<BootInstant>) -> Result<Option<BootInstant>, Lost> {
        self.inner.valid_until_changes(known).await
    }

    /// Why renewals of the hold's lease fail at present: the latest error of the lock service or of the
    /// connection. If they fail until the deadline, the hold is lost. `None` while renewals succeed.
    #[must_use]
    pub fn trouble(&self) -> Option<Arc<str>> {
        self.inner.trouble()
    }

    /// Waits until [`Guard::trouble`] differs from `known`, and returns it. Cancel-safe.
    pub async fn trouble_changes(&self, known: Option<&str>) -> Option<Arc<str>> {
        self.inner.trouble_changes(known).await
    }

    /// Checks that the hold remains valid for at least `need`, by the state of this process. No I/O.
    ///
    /// # Errors
    /// [`Lost`]; also with [`LossCause::Expired`] if the remaining validity is merely shorter than `need`.
    pub fn check(&self, need: Duration) -> Result<(), Lost> {
        match self.valid_until()? {
            Some(until) if until - self.inner.now() < need => Err(Lost::new(LossCause::Expired)),
            _ => Ok(()),
        }
    }

    /// Checks with the lock service that the hold is live. One round trip. The answer may be stale on
    /// arrival: only a fence gives a guarantee.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub async fn verify(&self) -> Result<(), VerifyError> {
        self.inner.verify().await
    }

    /// Replaces the value of this hold, which others read by [`Locks::inspect`](crate::Locks::inspect) and
    /// [`Locks::watch`](crate::Locks::watch): for example the address of a leader. At most 4,096 bytes; empty
    /// at first. One round trip. If the future is dropped, the value may or may not be set.
    ///
    /// # Errors
    /// [`ChangeError`]; [`ChangeError::Unsupported`] if the lock service has no values.
    pub async fn set_value(&self, value: impl Into<Vec<u8>>) -> Result<(), ChangeError> {
        let can = self.inner.capabilities().values;
        self.change(can, "keep a value of a hold", HoldChange::SetValue(value.into().into())).await
    }

    /// Makes an exclusive hold a shared one, without letting any other exclusive holder in between: waiting
    /// readers are granted at once. The token stays the same. No effect on a shared hold. One round trip.
    ///
    /// A fence still treats the section as exclusive: enter again as shared.
    ///
    /// # Errors
    /// [`ChangeError`]; [`ChangeError::Backend`] for a permit.
    pub async fn downgrade(&self) -> Result<(), ChangeError> {
        let can = self.inner.capabilities().downgrade;
        if can {
            self.inner.record_downgrade();
        }
        self.change(can, "share an exclusive hold", HoldChange::Downgrade).await
    }

    async fn change(&self, can: bool, what: &'static str, change: HoldChange) -> Result<(), ChangeError> {
        if !can {
            return Err(self.inner.capabilities().lacks(what).into());
        }
        self.inner.change(change).await
    }

    /// The slot of the permit at the first name; `None` in other modes.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        self.permits().first().map(|permit| permit.slot)
    }

    /// Slot and limit of each permit, one per name in byte order; empty for other modes.
    #[must_use]
    pub fn permits(&self) -> &[PermitGrant] {
        &self.inner.granted.permits
    }

    /// The token as a number for display and logs; `None` if the backend issues none. To fence writes,
    /// connect with [`Locks::fenced`](crate::Locks::fenced) and use [`Guard::token`].
    #[must_use]
    pub fn token_hint(&self) -> Option<Token> {
        self.inner.granted.token
    }

    /// Another guard of the same hold, for code that is called under it and takes a guard of its own. The
    /// hold is released with its last guard.
    pub fn reenter(&self) -> Self {
        Self { inner: self.inner.clone(), kind: PhantomData }
    }

    /// Releases the lock and waits for the answer. While other guards from [`Guard::reenter`] exist, only
    /// drops this one.
    ///
    /// If the future is dropped, the release continues in the background.
    ///
    /// # Errors
    /// [`ReleaseError::AlreadyLost`] if the hold was lost before: check the writes made since then.
    /// [`ReleaseError::Ambiguous`] if no answer arrived, or a refusal that may pass.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let Some(hold) = Arc::into_inner(self.inner) else { return Ok(()) };
        let now = hold.now();
        let lost = hold.loss_at(now);
        let released = hold.release(now).await;
        lost.map_or(released, |lost| Err(ReleaseError::AlreadyLost(lost)))
    }

    /// Descriptors that keep this hold alive in any process that has them, even after this process has died
    /// (`file:`). The guard owns them: duplicate or inherit them, do not close them. Empty where no
    /// descriptor holds the lock.
    #[must_use]
    pub fn descriptors(&self) -> Vec<std::os::fd::RawFd> {
        self.inner.descriptors()
    }

    pub(crate) fn held(&self) -> Held<'_, F> {
        Held { guard: self }
    }
}

impl Guard<Fenced> {
    /// The fencing token of this hold, higher than the token of every earlier hold of the lock (P2). Send it
    /// with every write.
    #[must_use]
    pub fn token(&self) -> Token {
        let token = self.inner.granted.token;
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

/// The lock held while the body of [`Lock::run`](crate::Lock::run) runs.
#[derive(Clone, Copy)]
pub struct Held<'a, F: Kind> {
    guard: &'a Guard<F>,
}

impl<F: Kind> fmt::Debug for Held<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

impl<F: Kind> std::ops::Deref for Held<'_, F> {
    type Target = Guard<F>;
    fn deref(&self) -> &Guard<F> {
        self.guard
    }
}
