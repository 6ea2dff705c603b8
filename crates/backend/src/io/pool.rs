//! Connections for the runtimes of callers.
//!
//! Each runtime has connections of its own, which are opened on it, and whose tasks run on it. They are
//! opened on demand, and closed when they fail, after a time without use, or with their runtime. A connection
//! serves one call at a time ([`Pool::alone`]), or many at once ([`Pool::shared`]); the users of one pool all
//! do the same. (The first connection of a shared pool may be opened by `alone`, because `alone` returns the
//! error if this fails.)

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::LeaseThread;
use crate::box_future::BoxFuture;
use crate::error::{BackendError, BackendErrorKind};

/// Shortest and longest pause between failed attempts to open a shared connection.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How the connections of one lock service are opened.
pub trait Connect: Send + Sync + 'static {
    /// A connection, which its users share.
    type Connection: Send + Sync + 'static;

    /// Opens a connection, within a time limit. Runs on the runtime that will use it; so do the tasks that it
    /// spawns.
    fn connect(&self) -> BoxFuture<'static, Result<Self::Connection, BackendError>>;

    /// Whether further calls may use the connection.
    fn is_usable(&self, connection: &Self::Connection) -> bool;
}

/// Bounds of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Shared connections of one runtime. A small number: each call scans all of them.
    pub shared_each: usize,
    /// Connections of all runtimes together.
    pub total: usize,
    /// How long a connection without users is kept.
    pub idle: Duration,
}

/// Clones share the connections.
pub struct Pool<C: Connect>(Arc<PoolInner<C>>);

struct PoolInner<C: Connect> {
    connector: C,
    limits: PoolLimits,
    /// Each open connection has a permit.
    open: Arc<Semaphore>,
    state: Mutex<PoolState<C::Connection>>,
    /// Notified when a shared connection was opened, or an attempt failed.
    changed: Notify,
}

struct PoolState<T> {
    /// The connections that may be handed out, by runtime; the most recently returned one is last.
    available: HashMap<Id, Members<T>>,
    /// The runtimes on which a shared connection is being opened.
    opening: HashSet<Id>,
    pause: Duration,
    not_before: Instant,
    trouble: Option<BackendError>,
}

/// An open connection.
struct Member<T> {
    connection: T,
    runtime: Id,
    users: AtomicUsize,
    /// When it was last returned.
    returned: Mutex<Instant>,
    discarded: AtomicBool,
    /// A task of the runtime holds the receiver, so that this sender is closed once the runtime has ended.
    runtime_runs: oneshot::Sender<()>,
    /// Freed with the connection, or earlier if the pool gives up an unusable connection that still has
    /// users.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

type Members<T> = Vec<Arc<Member<T>>>;

/// A connection in use. Returned to the pool on drop.
pub struct Used<C: Connect> {
    pool: Arc<PoolInner<C>>,
    member: Arc<Member<C::Connection>>,
    alone: bool,
}

impl<C: Connect> Clone for Pool<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Connect> Pool<C> {
    /// The lease thread closes idle connections.
    pub fn new(connector: C, limits: PoolLimits, lease_thread: &LeaseThread) -> Self {
        let state = PoolState {
            available: HashMap::new(),
            opening: HashSet::new(),
            pause: PAUSES.0,
            not_before: Instant::now(),
            trouble: None,
        };
        let inner = Arc::new(PoolInner {
            connector,
            limits,
            open: Arc::new(Semaphore::new(limits.total)),
            state: Mutex::new(state),
            changed: Notify::new(),
        });
        lease_thread.run(Box::pin(close_idle(Arc::downgrade(&inner), limits.idle)));
        Self(inner)
    }

    /// The error of the last failed attempt to open a connection, unless one was opened since.
    pub fn trouble(&self) -> Option<BackendError> {
        self.0.state().trouble.clone()
    }

    /// Sets [`Self::trouble`] to the error of a connection that does not answer.
    pub fn set_trouble(&self, error: BackendError) {
        self.0.state().trouble = Some(error);
    }

    /// Waits for the current runtime's connection with the fewest users. If all of them have users and the
    /// limits allow it, another one is opened in the background. A runtime that can't have a connection uses
    /// one of another runtime. Has no time limit; [`Self::trouble`] says why there is no connection.
    pub async fn shared(&self) -> Used<C> {
        if let Ok(used) = self.0.least_used() {
            return used;
        }
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // From here on no notification is missed.
            changed.as_mut().enable();
            match self.0.least_used() {
                Ok(used) => return used,
                Err(retry_at) => {
                    tokio::select! {
                        () = changed => {}
                        () = sleep_until(retry_at) => {}
                    }
                }
            }
        }
    }

    /// As [`Self::shared`], until the deadline. If there is no connection by then, [`Self::trouble`] says
    /// why.
    pub async fn shared_until(&self, deadline: Instant) -> Option<Used<C>> {
        let used = tokio::time::timeout_at(deadline, self.shared()).await.ok();
        if used.is_none() {
            let late = || BackendError::new(BackendErrorKind::Unreachable, "no connection was open in time");
            self.0.state().trouble.get_or_insert_with(late);
        }
        used
    }

    /// A connection for exclusive use until the returned value is dropped: an idle one of the current
    /// runtime, or a new one.
    ///
    /// # Errors
    /// All connections are in use, or the error of opening one.
    pub async fn alone(&self) -> Result<Used<C>, BackendError> {
        let runtime = Handle::current();
        if let Some(used) = self.0.take_idle(runtime.id()) {
            return Ok(used);
        }
        let (opened_in, opened) = oneshot::channel();
        let (pool, permit) = (self.0.clone(), self.0.permit_for_one()?);
        // A task of its own: if the caller stops waiting, the connection becomes an idle one.
        runtime.spawn(async move {
            let opened = pool.open(permit).await;
            drop(opened_in.send(opened.map(|(member, over)| {
                tokio::spawn(over);
                Used { pool, member, alone: true }
            })));
        });
        opened.await.unwrap_or_else(|_| Err(runtime_failed()))
    }
}

impl<C: Connect> PoolInner<C> {
    fn state(&self) -> MutexGuard<'_, PoolState<C::Connection>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_usable(&self, member: &Member<C::Connection>) -> bool {
        !member.discarded.load(Ordering::Relaxed)
            && !member.runtime_runs.is_closed()
            && self.connector.is_usable(&member.connection)
    }

    /// Takes the idle connection that was returned last.
    fn take_idle(self: &Arc<Self>, runtime: Id) -> Option<Used<C>> {
        loop {
            let member = self.state().available.get_mut(&runtime)?.pop()?;
            if self.is_usable(&member) {
                member.users.fetch_add(1, Ordering::Relaxed);
                return Some(Used { pool: self.clone(), member, alone: true });
            }
        }
    }

    /// The shared connection with the fewest users. `Err`: when to try again.
    fn least_used(self: &Arc<Self>) -> Result<Used<C>, Instant> {
        let runtime = Handle::current();
        let id = runtime.id();
        let now = Instant::now();
        let mut closed = Vec::new();
        let mut guard = self.state();
        let state = &mut *guard;
        let members = state.available.entry(id).or_default();
        self.remove_unusable(members, &mut closed);
        let mut least = fewest_users(members.iter());
        let opens = least.as_ref().is_none_or(|member| member.users() > 0)
            && members.len() < self.limits.shared_each
            && state.not_before <= now
            && !state.opening.contains(&id);
        let permit = if opens { self.permit(state, least.is_none(), &mut closed) } else { None };
        let is_opening = match permit {
            Some(_) => state.opening.insert(id),
            None => state.opening.contains(&id),
        };
        if least.is_none() && !is_opening {
            let others = state.available.values().flatten();
            least = fewest_users(others.filter(|member| self.is_usable(member)));
        }
        if let Some(member) = &least {
            member.users.fetch_add(1, Ordering::Relaxed);
        }
        let retry_at = if is_opening { now + PAUSES.1 } else { state.not_before.max(now + PAUSES.0) };
        // The spawned task takes this lock when it is dropped, which happens at once if the runtime is
        // shutting down.
        drop(guard);
        if let Some(permit) = permit {
            let opening = Opening { pool: self.clone(), runtime: id };
            runtime.spawn(opening.run(permit));
        }
        least.map(|member| Used { pool: self.clone(), member, alone: false }).ok_or(retry_at)
    }

    /// Removes unusable connections and frees their permits, even if they still have users. The caller drops
    /// `closed` after unlocking the state: closing a connection may run code of its library.
    fn remove_unusable(&self, members: &mut Members<C::Connection>, closed: &mut Members<C::Connection>) {
        for member in members.extract_if(.., |member| !self.is_usable(member)) {
            drop(member.take_permit());
            closed.push(member);
        }
    }

    /// The permit for one more connection, if there is one. With `makes_room`, an idle connection is closed
    /// for it if necessary.
    fn permit(
        &self,
        state: &mut PoolState<C::Connection>,
        makes_room: bool,
        closed: &mut Members<C::Connection>,
    ) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.open.clone().try_acquire_owned() {
            return Some(permit);
        }
        state.available.values_mut().for_each(|members| self.remove_unusable(members, closed));
        if let Ok(permit) = self.open.clone().try_acquire_owned() {
            return Some(permit);
        }
        if !makes_room {
            return None;
        }
        let idle = state.available.values_mut().find_map(|members| {
            let idle = members.iter().position(|member| member.users() == 0)?;
            Some(members.swap_remove(idle))
        })?;
        let permit = idle.take_permit();
        closed.push(idle);
        permit
    }

    fn permit_for_one(&self) -> Result<OwnedSemaphorePermit, BackendError> {
        let mut closed = Vec::new();
        let permit = self.permit(&mut self.state(), true, &mut closed);
        permit.ok_or_else(|| {
            let what = format!(
                "all {} connections of this client are in use, and each hold and each wait needs one of its own: release some, \
                 or raise `connections=` and the server's limit of connections",
                self.limits.total
            );
            BackendError::new(BackendErrorKind::LimitReached, what)
        })
    }

    /// Opens a connection on the current runtime, with one user. The returned future must run there: it ends
    /// with the connection.
    async fn open(
        &self,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Arc<Member<C::Connection>>, impl Future<Output = ()> + Send + use<C>), BackendError> {
        let connected = self.connector.connect().await;
        self.state().trouble = connected.as_ref().err().cloned();
        let (runtime_runs, over) = oneshot::channel();
        let member = Member {
            connection: connected?,
            runtime: Handle::current().id(),
            users: AtomicUsize::new(1),
            returned: Mutex::new(Instant::now()),
            discarded: AtomicBool::new(false),
            runtime_runs,
            permit: Mutex::new(Some(permit)),
        };
        let over = async move { drop(over.await) };
        Ok((Arc::new(member), over))
    }
}

impl<T> Member<T> {
    fn users(&self) -> usize {
        self.users.load(Ordering::Relaxed)
    }

    fn take_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn fewest_users<'a, T>(members: impl Iterator<Item = &'a Arc<Member<T>>>) -> Option<Arc<Member<T>>>
where
    T: 'a,
{
    members.min_by_key(|member| member.users()).cloned()
}

/// A shared connection that is being opened. Dropped with its task, also when the runtime ends.
struct Opening<C: Connect> {
    pool: Arc<PoolInner<C>>,
    runtime: Id,
}

impl<C: Connect> Opening<C> {
    async fn run(self, permit: OwnedSemaphorePermit) {
        match self.pool.open(permit).await {
            Ok((member, over)) => {
                self.add(member);
                drop(self);
                over.await;
            }
            Err(error) => self.failed(&error),
        }
    }

    fn add(&self, member: Arc<Member<C::Connection>>) {
        member.users.store(0, Ordering::Relaxed);
        let mut state = self.pool.state();
        state.available.entry(self.runtime).or_default().push(member);
        state.pause = PAUSES.0;
    }

    fn failed(&self, error: &BackendError) {
        tracing::debug!(%error, "no further connection");
        let mut state = self.pool.state();
        state.not_before = Instant::now() + state.pause;
        state.pause = (state.pause * 2).min(PAUSES.1);
    }
}

impl<C: Connect> Drop for Opening<C> {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = runtime_failed();
            self.failed(&error);
            self.pool.state().trouble = Some(error);
        }
        self.pool.state().opening.remove(&self.runtime);
        self.pool.changed.notify_waiters();
    }
}

impl<C: Connect> Used<C> {
    /// Prevents that the connection is handed out again: its state is unknown, or it does not answer.
    pub fn discard(&self) {
        self.member.discarded.store(true, Ordering::Relaxed);
    }

    /// Whether its runtime is the current one. The connection makes progress only while its runtime runs.
    pub fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|here| here.id() == self.member.runtime)
    }
}

impl<C: Connect> Deref for Used<C> {
    type Target = C::Connection;

    fn deref(&self) -> &C::Connection {
        &self.member.connection
    }
}

impl<C: Connect> Drop for Used<C> {
    fn drop(&mut self) {
        *self.member.returned.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.member.users.fetch_sub(1, Ordering::Relaxed);
        if self.alone && self.pool.is_usable(&self.member) {
            let mut state = self.pool.state();
            state.available.entry(self.member.runtime).or_default().push(self.member.clone());
        }
    }
}

/// Closes unusable connections, and those that were idle for too long, until the pool is dropped.
async fn close_idle<C: Connect>(pool: Weak<PoolInner<C>>, idle: Duration) {
    loop {
        sleep(idle / 4).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut closed = Vec::new();
        let mut state = pool.state();
        let now = Instant::now();
        for members in state.available.values_mut() {
            pool.remove_unusable(members, &mut closed);
            closed.extend(members.extract_if(.., |member| {
                let returned = *member.returned.lock().unwrap_or_else(PoisonError::into_inner);
                member.users() == 0 && now - returned >= idle
            }));
        }
        state.available.retain(|_, members| !members.is_empty());
        drop(state);
    }
}

fn runtime_failed() -> BackendError {
    let what = "a connection could not be opened on this tokio runtime: it is shutting down, or was built without \
                `enable_all()`";
    BackendError::new(BackendErrorKind::Operator, what)
}
