//! Holds.

use lockkeeper::{Fenced, Unfenced};
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;
use tokio_util::sync::CancellationToken;

use crate::bridge::{Bridge, CallAnswer, within};
use crate::errors::{NativeError, throw};
use crate::options::milliseconds;

/// A hold of any kind.
pub(crate) enum AnyHold {
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

/// What JavaScript has of a hold.
pub(crate) struct HoldFacts {
    /// Below 2^53 (rule T3).
    pub(crate) token: Option<f64>,
    pub(crate) slot: Option<u32>,
    /// The number of a partition.
    pub(crate) index: Option<u32>,
}

impl AnyHold {
    pub(crate) fn facts(&self) -> HoldFacts {
        HoldFacts {
            token: with!(self, hold => hold.token_hint()).map(|token| token.get() as f64),
            slot: with!(self, hold => hold.slot()),
            index: match self {
                Self::Plain(_) | Self::Fenced(_) => None,
                Self::PlainPartition(partition) => Some(partition.index()),
                Self::FencedPartition(partition) => Some(partition.index()),
            },
        }
    }

    pub(crate) fn lost(&self) -> CancellationToken {
        with!(self, hold => hold.lost())
    }

    /// Why it is lost; `None` while it is held.
    pub(crate) fn loss(&self) -> Option<lockkeeper::Lost> {
        with!(self, hold => hold.valid_until()).err()
    }
}

impl Bridge {
    /// Reads a hold.
    ///
    /// # Errors
    /// It was released, or is being released.
    fn read<T>(&self, hold: u32, read: impl FnOnce(&AnyHold) -> Result<T, NativeError>) -> napi::Result<T> {
        let kept = self.hold(hold).ok_or(NativeError::Released).map_err(throw)?;
        let kept = kept.try_read().map_err(|_| throw(NativeError::Released))?;
        kept.as_ref().ok_or(NativeError::Released).and_then(read).map_err(throw)
    }
}

#[napi]
impl Bridge {
    /// Throws `LockLost`, also if less than `need` milliseconds are certain.
    #[napi]
    pub fn check(&self, hold: u32, need: f64) -> napi::Result<()> {
        let need = milliseconds("need", need).map_err(throw)?;
        self.read(hold, |hold| Ok(with!(hold, it => it.check(need))?))
    }

    /// The milliseconds for which the hold is certain; `null` if it has no end. Throws `LockLost`.
    #[napi]
    pub fn valid_for(&self, hold: u32) -> napi::Result<Option<f64>> {
        self.read(hold, |hold| {
            let until = with!(hold, it => it.valid_until())?;
            Ok(until.map(|until| (until - lockkeeper::BootInstant::now()).as_secs_f64() * 1e3))
        })
    }

    /// What keeps the lease from being renewed at present.
    #[napi]
    pub fn trouble(&self, hold: u32) -> napi::Result<Option<String>> {
        self.read(hold, |hold| Ok(with!(hold, it => it.trouble()).map(|text| text.to_string())))
    }

    /// Whether a partition is wanted by another member.
    #[napi]
    pub fn is_leaving(&self, hold: u32) -> napi::Result<bool> {
        self.read(hold, |hold| {
            Ok(match hold {
                AnyHold::PlainPartition(partition) => partition.is_leaving(),
                AnyHold::FencedPartition(partition) => partition.is_leaving(),
                AnyHold::Plain(_) | AnyHold::Fenced(_) => false,
            })
        })
    }

    #[napi]
    pub fn verify(&self, call: u32, hold: u32) {
        let kept = self.hold(hold);
        self.begin(call, async move {
            let kept = kept.ok_or(NativeError::Released)?;
            let hold = kept.read().await;
            let hold = hold.as_ref().ok_or(NativeError::Released)?;
            with!(hold, it => it.verify().await)?;
            Ok(CallAnswer::Nothing)
        });
    }

    #[napi]
    pub fn set_value(&self, call: u32, hold: u32, value: Uint8Array) {
        let (kept, value) = (self.hold(hold), value.to_vec());
        self.begin(call, async move {
            let kept = kept.ok_or(NativeError::Released)?;
            let hold = kept.read().await;
            let hold = hold.as_ref().ok_or(NativeError::Released)?;
            with!(hold, it => it.set_value(value).await)?;
            Ok(CallAnswer::Nothing)
        });
    }

    #[napi]
    pub fn downgrade(&self, call: u32, hold: u32) {
        let kept = self.hold(hold);
        self.begin(call, async move {
            let kept = kept.ok_or(NativeError::Released)?;
            let hold = kept.read().await;
            let hold = hold.as_ref().ok_or(NativeError::Released)?;
            with!(hold, it => it.downgrade().await)?;
            Ok(CallAnswer::Nothing)
        });
    }

    /// Waits until a partition is wanted by another member, or lost.
    #[napi]
    pub fn leaving(&self, call: u32, hold: u32) {
        let kept = self.hold(hold);
        self.begin(call, async move {
            let kept = kept.ok_or(NativeError::Released)?;
            match kept.read().await.as_ref().ok_or(NativeError::Released)? {
                AnyHold::PlainPartition(partition) => partition.leaving().await,
                AnyHold::FencedPartition(partition) => partition.leaving().await,
                hold => hold.lost().cancelled().await,
            }
            Ok(CallAnswer::Nothing)
        });
    }

    /// Releases a hold; waits for calls on it that are in progress.
    #[napi]
    pub fn release(&self, call: u32, hold: u32) {
        let kept = self.take_hold(hold);
        self.begin(call, async move {
            let hold =
                kept.ok_or(NativeError::Released)?.write().await.take().ok_or(NativeError::Released)?;
            with!(hold, it => it.release().await)?;
            Ok(CallAnswer::Nothing)
        });
    }

    /// Gives a hold up: it is released in the background.
    #[napi]
    pub fn abandon(&self, hold: u32) {
        let kept = self.take_hold(hold);
        within(|| drop(kept));
    }
}
