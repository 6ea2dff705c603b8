//! Distributed locks that keep their promise even when a holder stalls.

mod backend;
mod capabilities;
mod error;
mod info;
mod kind;
mod machine;
mod time;
pub mod url;

pub use backend::{BreakOrder, Broken};
pub use capabilities::{Capabilities, Fencing, Promise, Reach};
pub use error::{
    AcquireError, BackendError, BackendErrorKind, Busy, ConnectError, LossCause, Lost, ReleaseError,
    RunError, Unsupported,
};
pub use info::{HolderInfo, HolderState, LockInfo, WaiterInfo};
pub use kind::{Fenced, Kind, Unfenced};
pub use lockkeeper_core::{LockName, ModeKind as Mode, NameError, Slot, Token, TokenStatus};
pub use time::{BootInstant, VirtualClock};
