//! Distributed locks that keep their promise even when a holder stalls.

mod backend;
pub mod backends;
pub mod blocking;
mod capabilities;
mod error;
mod fd;
mod guard;
mod info;
mod kind;
mod lock;
mod locks;
mod machine;
mod observe;
mod session;
mod time;
pub mod url;
mod worker;

pub use backend::{BreakOrder, Broken};
pub use capabilities::{Capabilities, Fencing, Promise, Reach};
pub use error::{
    AcquireError, BackendError, BackendErrorKind, Busy, ConnectError, LossCause, Lost, ReleaseError,
    RunError, Unsupported, VerifyError,
};
pub use guard::{Guard, Held};
pub use info::{HolderInfo, HolderState, LockInfo, WaiterInfo};
pub use kind::{Fenced, Kind, Unfenced};
pub use lock::{Lock, OnLost, Wait};
pub use lockkeeper_core::{LockName, ModeKind as Mode, NameError, PermitGrant, Slot, Token, TokenStatus};
pub use locks::{Locks, RwLock, ShutdownReport};
pub use time::{BootInstant, VirtualClock};
