//! `memory:`: the table in this process, for tests of code that uses locks, with virtual time and fault
//! injection.
//!
//! The table and the client's session are those of Lockkeeper's own service, without network and disk.
//! Nothing outlives the process, and clients in other processes are not excluded.

mod deadlines;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lockkeeper_backend::{
    Backend, BackendError, BackendInfo, BoxFuture, BreakOrder, Broken, Capabilities, Clock, Conn,
    ConnectError, Fencing, LockInfo, Promise, Promises, Push, Reach, Spec, Url, VirtualClock,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use crate::locks::Locks;
use server::{MemoryConn, MemoryService};

/// A lock service in this process, under the control of a test.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use lockkeeper::backends::memory::Server;
///
/// let server = Server::with_virtual_time();
/// let (alice, bob) = (server.client("alice"), server.client("bob"));
/// let held = alice.mutex("jobs/nightly").acquire().await.unwrap();
/// server.cut_off("alice"); // from here on, nothing of alice's arrives
/// assert!(bob.mutex("jobs/nightly").try_acquire().await.unwrap().is_none());
/// server.advance(Duration::from_secs(31)); // alice's ttl is 30 s
/// assert!(held.loss().is_some(), "alice knows before bob can hold it");
/// assert!(bob.mutex("jobs/nightly").try_acquire().await.unwrap().is_some());
/// # });
/// ```
#[derive(Clone)]
pub struct Server {
    service: Arc<MemoryService>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// A server on the system clock.
    #[must_use]
    pub fn new() -> Self {
        Self { service: MemoryService::start(Clock::Boot) }
    }

    /// A server on a virtual clock that only [`Server::advance`] moves.
    #[must_use]
    pub fn with_virtual_time() -> Self {
        Self { service: MemoryService::start(Clock::Virtual(VirtualClock::default())) }
    }

    /// A client with this label.
    #[must_use]
    pub fn client(&self, label: &str) -> Locks {
        Locks::over(Arc::new(Memory { service: self.service.clone() }), label)
    }

    /// Advances virtual time; everything due in between happens in order of time, before this returns.
    ///
    /// # Panics
    /// If the server uses the system clock.
    pub fn advance(&self, duration: Duration) {
        match self.service.clock() {
            Clock::Virtual(clock) => clock.advance(duration),
            Clock::Boot => {
                panic!("only a server with_virtual_time() can advance; this one is on the machine's clock")
            }
        }
    }

    /// Cuts off the clients with this label: none of their calls arrive, and no answers and notifications
    /// reach them.
    pub fn cut_off(&self, label: &str) {
        self.service.faults(|faults| faults.cut_off.extend([label.to_owned()]));
    }

    /// Undoes [`Server::cut_off`].
    pub fn reconnect(&self, label: &str) {
        self.service.faults(|faults| faults.cut_off.retain(|other| other != label));
    }

    /// The next `count` calls of any clients arrive and are executed, but their answers are lost.
    pub fn lose_answers(&self, count: u32) {
        self.service.faults(|faults| faults.lose_answers = count);
    }

    /// The next `count` calls of any clients never arrive.
    pub fn lose_calls(&self, count: u32) {
        self.service.faults(|faults| faults.lose_calls = count);
    }

    /// Stalls the service: it processes no calls of sessions, and ends nothing.
    pub fn stall(&self) {
        self.service.faults(|faults| faults.stalled = true);
    }

    /// Ends a stall. Calls that arrived during the stall are processed first.
    pub fn resume(&self) {
        self.service.resume();
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

/// The backend's description for users, and its `connect`.
pub(crate) const INFO: BackendInfo = BackendInfo {
    example: "memory:",
    summary: "this process only, for tests",
    schemes: &["memory"],
    default_port: None,
    has_password: false,
    excludes: "none",
    excluded_by: "none",
    pages: &["memory"],
    connect: |url| Box::pin(std::future::ready(connect(url))),
};

/// `memory:` creates a new service; `memory:name` is shared by all clients of this process that use the name.
fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    static NAMED: OnceLock<Mutex<BTreeMap<String, Weak<MemoryService>>>> = OnceLock::new();
    url.only_parameters(&[])?;
    if !url.hosts.is_empty() {
        return Err(url
            .bad_part(url.hosts[0].name.clone(), "a name without `//`, as in `memory:name`")
            .into());
    }
    if url.path.is_empty() {
        return Ok(Arc::new(Memory { service: MemoryService::start(Clock::Boot) }));
    }
    let mut named = NAMED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    named.retain(|_, service| service.strong_count() > 0);
    let service = match named.get(&url.path).and_then(Weak::upgrade) {
        Some(service) => service,
        None => {
            let service = MemoryService::start(Clock::Boot);
            named.insert(url.path.clone(), Arc::downgrade(&service));
            service
        }
    };
    Ok(Arc::new(Memory { service }))
}

struct Memory {
    service: Arc<MemoryService>,
}

static CAPABILITIES: Capabilities = Capabilities {
    backend: "memory",
    reach: Reach::Process,
    fencing: Fencing::Tokens { source: "a counter of this process, from 1" },
    ttl: true,
    shared: true,
    permits: true,
    subtree: true,
    multi: true,
    wait: true,
    fair: true,
    queue_limit: true,
    keep_closed: true,
    lock_delay: true,
    inspect: true,
    watch: false,
    break_hold: true,
    break_now: true,
    values: true,
    downgrade: true,
    cached: true,
    promises: Promises {
        rising_tokens: Promise::KeptIf("the process lives: a new one starts at 1 again"),
        durable: Promise::NotKept("nothing outlives the process"),
        ..Promises::ALL_KEPT
    },
};

impl Backend for Memory {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn clock(&self) -> Clock {
        self.service.clock().clone()
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        Arc::new(MemoryConn::new(self.service.clone(), spec, label, pushes))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'static, Result<LockInfo, BackendError>> {
        let info = self.service.inspect(name);
        Box::pin(async { Ok(info) })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'static, Result<Vec<LockInfo>, BackendError>> {
        let list = self.service.list(prefix.as_ref());
        Box::pin(async { Ok(list) })
    }

    fn check_token(
        &self,
        name: LockName,
        token: Token,
    ) -> BoxFuture<'static, Result<TokenStatus, BackendError>> {
        let status = self.service.check_token(&name, token.get());
        Box::pin(async move { Ok(status) })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'static, Result<Broken, BackendError>> {
        let result = self.service.break_hold(order);
        Box::pin(async move { result })
    }
}
