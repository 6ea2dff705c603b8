//! The trait of a lock service.

use std::sync::Arc;

use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use crate::administration::Administration;
use crate::box_future::BoxFuture;
use crate::break_hold::{BreakOrder, Broken};
use crate::call::Push;
use crate::capabilities::Capabilities;
use crate::conn::Conn;
use crate::error::{BackendError, Unsupported};
use crate::info::{Finding, LockInfo};
use crate::io::LeaseThread;
use crate::spec::Spec;
use crate::time::Clock;
use crate::watch::Watch;

/// One lock service, as identified by the URL.
///
/// Required: [`Backend::capabilities`] and [`Backend::session`]. The other methods have defaults; those of
/// abilities return an [`Unsupported`] error. A backend overrides the methods of the abilities that it has.
pub trait Backend: Send + Sync + 'static {
    /// The abilities and promises of the service. The same at every call.
    fn capabilities(&self) -> &Capabilities;

    /// Creates the connection for one session. Does no I/O yet.
    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn>;

    /// The clock on which the backend's leases are measured.
    fn clock(&self) -> Clock {
        Clock::Boot
    }

    /// The backend's I/O thread, if it has one. The backend's sessions then run on that thread too, so that
    /// they process the events of their streams without delay.
    fn lease_thread(&self) -> Option<LeaseThread> {
        None
    }

    /// The holders and the waiters of a lock.
    fn inspect(&self, _name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        failed(self.capabilities().lacks("show holders and waiters"))
    }

    /// All locks in use at or below `prefix`, by name.
    fn list(&self, _prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        failed(self.capabilities().lacks("list locks"))
    }

    /// The present status of a token. Called only if the capabilities declare tokens.
    fn check_token(
        &self,
        _name: LockName,
        _token: Token,
    ) -> BoxFuture<'_, Result<TokenStatus, BackendError>> {
        failed(self.capabilities().lacks_tokens("check a token"))
    }

    /// Ends another client's hold. Called only if the capabilities declare tokens.
    fn break_hold(&self, _order: BreakOrder) -> BoxFuture<'_, Result<Broken, BackendError>> {
        failed(self.capabilities().lacks_tokens("break a hold"))
    }

    /// What the service's own settings imply for its locks, for `doctor`.
    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The locks at and below `prefix`, then every change. May be called outside of a tokio runtime.
    fn watch(&self, _prefix: Option<LockName>) -> Result<Watch, BackendError> {
        Err(self.capabilities().lacks("watch locks").into())
    }

    /// The operations on the service itself, its sessions and its nodes, if clients can call them.
    fn administration(&self) -> Option<&dyn Administration> {
        None
    }
}

fn failed<T: Send + 'static>(error: Unsupported) -> BoxFuture<'static, Result<T, BackendError>> {
    Box::pin(std::future::ready(Err(error.into())))
}
