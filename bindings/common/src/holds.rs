//! Holds.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{BootInstant, Fenced, Lost, ReleaseError, Token, Unfenced};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tokio_util::sync::CancellationToken;

use crate::errors::CallError;

/// A hold of any kind.
#[derive(Debug)]
pub enum AnyHold {
    Plain(lockkeeper::Guard<Unfenced>),
    Fenced(lockkeeper::Guard<Fenced>),
    PlainPartition(lockkeeper::Partition<Unfenced>),
    FencedPartition(lockkeeper::Partition<Fenced>),
}

macro_rules! with {
    ($hold:expr, $it:ident => $do:expr) => {
        match $hold {
            AnyHold::Plain($it) => $do,
            AnyHold::Fenced($it) => $do,
            AnyHold::PlainPartition($it) => $do,
            AnyHold::FencedPartition($it) => $do,
        }
    };
}

impl AnyHold {
    /// The token; `None` if the lock service has none.
    pub fn token(&self) -> Option<Token> {
        with!(self, hold => hold.token_hint())
    }

    pub fn slot(&self) -> Option<u32> {
        with!(self, hold => hold.slot())
    }

    /// The number of a partition.
    pub fn index(&self) -> Option<u32> {
        match self {
            Self::Plain(_) | Self::Fenced(_) => None,
            Self::PlainPartition(partition) => Some(partition.index()),
            Self::FencedPartition(partition) => Some(partition.index()),
        }
    }

    /// Cancelled when the hold is lost.
    pub fn lost(&self) -> CancellationToken {
        with!(self, hold => hold.lost())
    }

    /// Until when the hold is certain; `None` if it has no end.
    ///
    /// # Errors
    /// It is lost.
    pub fn valid_until(&self) -> Result<Option<BootInstant>, Lost> {
        with!(self, hold => hold.valid_until())
    }

    /// # Errors
    /// It is lost, or certain for less than `need`.
    pub fn check(&self, need: Duration) -> Result<(), Lost> {
        with!(self, hold => hold.check(need))
    }

    /// What keeps the lease from being renewed at present.
    pub fn trouble(&self) -> Option<Arc<str>> {
        with!(self, hold => hold.trouble())
    }

    /// Whether a partition is wanted by another member.
    pub fn is_leaving(&self) -> bool {
        match self {
            Self::Plain(_) | Self::Fenced(_) => false,
            Self::PlainPartition(partition) => partition.is_leaving(),
            Self::FencedPartition(partition) => partition.is_leaving(),
        }
    }
}

/// A hold that several calls use, until one of them releases it: a release waits for the others.
#[derive(Clone, Debug)]
pub struct SharedHold {
    hold: Arc<RwLock<Option<AnyHold>>>,
    /// Cancelled by a release: ends `leaving`, for which it would wait as long as the hold lasts.
    releasing: CancellationToken,
}

impl SharedHold {
    pub fn new(hold: AnyHold) -> Self {
        Self { hold: Arc::new(RwLock::new(Some(hold))), releasing: CancellationToken::new() }
    }

    /// Reads the hold.
    ///
    /// # Errors
    /// It was released, or is being released.
    pub fn read<T>(&self, read: impl FnOnce(&AnyHold) -> T) -> Result<T, CallError> {
        self.begin().map(|hold| read(&hold))
    }

    /// Begins a call: a release from now on waits for it, whichever of the two is polled first.
    fn begin(&self) -> Result<OwnedRwLockReadGuard<Option<AnyHold>, AnyHold>, CallError> {
        let hold = self.hold.clone().try_read_owned().map_err(|_| CallError::Released)?;
        OwnedRwLockReadGuard::try_map(hold, Option::as_ref).map_err(|_| CallError::Released)
    }

    /// Why it is lost, waiting for a release in progress; `None` if it is not, or was released.
    pub async fn loss(&self) -> Option<Lost> {
        self.hold.read().await.as_ref().and_then(|hold| hold.valid_until().err())
    }

    /// # Errors
    /// As `Guard::verify`, or it was released.
    pub fn verify(&self) -> impl Future<Output = Result<(), CallError>> + Send + use<> {
        let hold = self.begin();
        async move { Ok(with!(&*hold?, hold => hold.verify().await)?) }
    }

    /// # Errors
    /// As `Guard::set_value`, or it was released.
    pub fn set_value(&self, value: Vec<u8>) -> impl Future<Output = Result<(), CallError>> + Send + use<> {
        let hold = self.begin();
        async move { Ok(with!(&*hold?, hold => hold.set_value(value).await)?) }
    }

    /// # Errors
    /// As `Guard::downgrade`, or it was released.
    pub fn downgrade(&self) -> impl Future<Output = Result<(), CallError>> + Send + use<> {
        let hold = self.begin();
        async move { Ok(with!(&*hold?, hold => hold.downgrade().await)?) }
    }

    /// Waits until a partition is wanted by another member, or the hold is lost, or released.
    ///
    /// # Errors
    /// It was released before.
    pub fn leaving(&self) -> impl Future<Output = Result<(), CallError>> + Send + use<> {
        let (hold, releasing) = (self.begin(), self.releasing.clone());
        async move {
            let hold = hold?;
            let leaving = async {
                match &*hold {
                    AnyHold::PlainPartition(partition) => partition.leaving().await,
                    AnyHold::FencedPartition(partition) => partition.leaving().await,
                    hold => hold.lost().cancelled().await,
                }
            };
            tokio::select! {
                () = leaving => {}
                () = releasing.cancelled() => {}
            }
            Ok(())
        }
    }

    /// Releases the hold; waits for calls on it that are in progress. It begins at once, and goes on in the
    /// background if the future is dropped. To be called in the runtime.
    ///
    /// # Errors
    /// As `Guard::release`, or it was released.
    pub fn release(&self) -> impl Future<Output = Result<(), CallError>> + Send + use<> {
        self.releasing.cancel();
        let shared = self.hold.clone();
        in_background(async move {
            let hold = shared.write().await.take().ok_or(CallError::Released)?;
            Ok(with!(hold, hold => hold.release().await)?)
        })
    }

    /// Gives the hold up, unless calls on it are in progress: it is released in the background.
    pub fn abandon(&self) {
        if let Ok(mut hold) = self.hold.try_write() {
            hold.take();
        }
    }
}

/// Begins a release, which goes on if the future is dropped.
pub(crate) fn in_background<R>(release: R) -> impl Future<Output = Result<(), CallError>> + Send + use<R>
where
    R: Future<Output = Result<(), CallError>> + Send + 'static,
{
    // Fails only if the task has panicked.
    let panicked = |error: tokio::task::JoinError| {
        Err(ReleaseError::Ambiguous { why: Some(error.to_string().into()) }.into())
    };
    let task = tokio::spawn(release);
    async move { task.await.unwrap_or_else(panicked) }
}
