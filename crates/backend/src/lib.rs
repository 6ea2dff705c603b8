//! The interface between Lockkeeper and a lock service ([`Backend`]), and what lock services have in common.
//!
//! Programs that take locks need the package `lockkeeper` alone. It re-exports the types of this package that
//! are part of its own interface. This package is for those who add a lock service:
//! docs/write-a-backend.md leads through it, and `examples/backend` is a small one.
//!
//! | file or folder | content |
//! | --- | --- |
//! | `backend`, `conn`, `call` | the two traits of a lock service: [`Backend`] for all its clients, [`Conn`] for one session; calls, answers and pushes |
//! | `backend_info` | name, features and pages of a service, for users ([`BackendInfo`]) |
//! | `administration` | operations on a service that has sessions and nodes of its own ([`Administration`]) |
//! | [`leased`] | sessions for services that have none, whose entries expire: such a service implements [`leased::Store`] in place of [`Conn`] |
//! | `capabilities` | the abilities and promises of a service ([`Capabilities`]) |
//! | `error`, `info`, `watch`, `backup`, `cluster`, `break_hold` | errors, descriptions and results that a
//! service returns |
//! | `url`, `rotated`, `tls_files`, `exposed`, `grpc` | URLs, and credentials in files that are replaced while a program runs |
//! | [`io`] | the lease thread, connections of each runtime, descriptors |
//! | `random` | random bytes, and bytes as hexadecimal digits |
//! | `time` | the clock of leases ([`BootInstant`]), and a test's clock |
//! | [`changes`] | watches for services that report which lock has changed, but not its new state |

mod administration;
mod backend;
mod backend_info;
mod backup;
mod box_future;
mod break_hold;
mod call;
mod capabilities;
#[cfg(feature = "grpc-tls")]
mod certificate;
pub mod changes;
mod cluster;
mod conn;
mod error;
mod exposed;
#[cfg(feature = "grpc")]
pub mod grpc;
mod info;
pub mod io;
#[cfg(feature = "leased")]
pub mod leased;
mod random;
mod responder;
mod rotated;
mod spec;
mod time;
mod tls_files;
mod url;
mod watch;

pub use administration::Administration;
pub use backend::Backend;
pub use backend_info::{BackendInfo, Connect, Connecting};
pub use backup::Backup;
pub use box_future::BoxFuture;
pub use break_hold::{BreakOrder, Broken, EndSessionOrder, EndedSession};
pub use call::{AcquireRequest, Answer, Call, CallError, CallId, Granted, HoldChange, Push};
pub use capabilities::{Capabilities, Fencing, Promise, Promises, Reach};
#[cfg(feature = "grpc-tls")]
pub use certificate::ClientCertificate;
pub use cluster::{
    ClusterInfo, MembersChange, NodeDisk, NodeInfo, NodePart, NodeReport, NodeRole, ServiceStatus,
};
pub use conn::Conn;
#[cfg(feature = "test-util")]
pub use conn::answer_to;
pub use error::{BackendError, BackendErrorKind, BreakNotice, Busy, ConnectError, LossCause, Unsupported};
pub use exposed::exposed;
pub use info::{
    Finding, HolderInfo, HolderState, LockInfo, SessionInfo, WaiterInfo, decode_meta, encode_meta,
};
pub use random::{hex, random_bytes};
pub use responder::{CallOrigin, CallResult, Responder};
pub use rotated::Rotated;
pub use spec::Spec;
pub use time::{Alarm, BootInstant, Clock, VirtualClock};
pub use tls_files::{TLS_PARAMETERS, TlsFiles};
pub use url::{Host, Login, Password, Url, UrlError, did_you_mean, percent_decode, read_begin};
pub use watch::{Watch, WatchEvent};
