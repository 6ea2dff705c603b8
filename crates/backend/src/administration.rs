//! The operations on a lock service itself, for operators. Lockkeeper's own service has them.

use lockkeeper_core::LockName;

use crate::backup::Backup;
use crate::box_future::BoxFuture;
use crate::break_hold::{EndSessionOrder, EndedSession};
use crate::cluster::{ClusterInfo, MembersChange, NodeReport, ServiceStatus};
use crate::error::BackendError;
use crate::info::SessionInfo;

/// Sessions, stored limits, backups and nodes of a lock service.
pub trait Administration: Send + Sync {
    /// The live sessions, by id.
    fn sessions(&self) -> BoxFuture<'_, Result<Vec<SessionInfo>, BackendError>>;

    /// Ends a session and all that it holds and waits for.
    fn end_session(&self, order: EndSessionOrder) -> BoxFuture<'_, Result<EndedSession, BackendError>>;

    /// A backup of the whole table. May be called outside of a tokio runtime.
    fn backup(&self) -> Result<Backup, BackendError>;

    /// Stores a name's number of permits, or removes it (L4).
    fn set_limit(&self, name: LockName, permits: Option<u32>) -> BoxFuture<'_, Result<(), BackendError>>;

    /// The status of the node that answers.
    fn status(&self) -> BoxFuture<'_, Result<ServiceStatus, BackendError>>;

    /// The status of each node of the URL, and of further members that these report.
    fn nodes(&self) -> BoxFuture<'_, Result<Vec<NodeReport>, BackendError>>;

    /// The members of the cluster.
    fn cluster(&self) -> BoxFuture<'_, Result<ClusterInfo, BackendError>>;

    /// Changes the members of the cluster.
    fn change_members(&self, change: MembersChange) -> BoxFuture<'_, Result<(), BackendError>>;

    /// Transfers the leadership; returns the new leader.
    fn transfer(&self, to: Option<u64>) -> BoxFuture<'_, Result<u64, BackendError>>;
}
