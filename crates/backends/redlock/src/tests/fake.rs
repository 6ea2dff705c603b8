//! In-memory nodes: a key with an expiry for each lock, a queue, and the faults of a server behind a network.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{Attempt, Entry, EntryId, Renewed, Store, Tried, Wake, Wakes};
use lockkeeper_backend::{BackendError, BackendErrorKind, BootInstant, BoxFuture, Busy, CallError, Granted};
use lockkeeper_core::{End, LockName, Mode};
use tokio::time::{Instant, sleep, timeout};

use crate::store::{QuorumNode, RedlockStore};

/// A node's behaviour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// Connections are refused.
    Dead,
    /// It is paused: calls are executed when it resumes.
    Hung,
    /// It executes calls, and the answers are lost.
    LosesAnswers,
    /// Calls are lost on the way.
    LosesCalls,
    /// It refuses all attempts, as with a wrong password. Renewals and removals are executed.
    Refuses,
}

/// A handle to a node.
#[derive(Clone)]
pub(super) struct Fake(Arc<Mutex<State>>);

struct State {
    fault: Fault,
    delay: Duration,
    keys: BTreeMap<LockName, Key>,
    waiters: Vec<(LockName, EntryId)>,
    gone: BTreeSet<EntryId>,
    backlog: VecDeque<Delayed>,
    attempts: usize,
    /// The listeners of each client.
    wakes: Vec<Wakes>,
}

/// A call that is executed when the node resumes.
type Delayed = Box<dyn FnOnce(&mut State) + Send>;

struct Key {
    id: EntryId,
    owner: String,
    until: Instant,
    closed: bool,
}

impl State {
    fn key(&mut self, name: &LockName) -> Option<&mut Key> {
        self.keys.retain(|_, key| Instant::now() < key.until);
        self.keys.get_mut(name)
    }

    fn attempt(&mut self, attempt: &Attempt) -> Tried {
        let Entry { id, name, ttl, .. } = &*attempt.entry;
        self.attempts += 1;
        if let Some(key) = self.key(name) {
            if key.id == *id {
                return Tried::Granted(Granted::default());
            }
            let holder = (!key.closed).then(|| key.owner.clone());
            if !attempt.wait {
                return Tried::Busy(Busy { holder, queued_ahead: 0 });
            }
            if !self.waiters.iter().any(|(_, waiting)| waiting == id) {
                self.waiters.push((name.clone(), id.clone()));
            }
            return Tried::Waits { ahead: 0, again: Duration::from_secs(1) };
        }
        if self.gone.contains(id) {
            return Tried::Busy(Busy::default());
        }
        self.waiters.retain(|(_, waiting)| waiting != id);
        let until = Instant::now() + *ttl + attempt.entry.closed_after_expiry();
        let key = Key { id: id.clone(), owner: attempt.label.to_string(), until, closed: false };
        self.keys.insert(name.clone(), key);
        Tried::Granted(Granted::default())
    }

    fn renew(&mut self, entry: &Entry) -> Renewed {
        let waits = self.waiters.iter().any(|(_, waiting)| *waiting == entry.id);
        let until = Instant::now() + entry.ttl + entry.closed_after_expiry();
        match self.key(&entry.name) {
            Some(key) if key.id == entry.id && !key.closed => {
                key.until = until;
                Renewed::Kept
            }
            _ if waits => Renewed::Kept,
            _ => Renewed::Gone,
        }
    }

    fn finish(&mut self, entry: &Entry, doubt: bool) -> (End, Option<EntryId>) {
        if doubt {
            self.gone.insert(entry.id.clone());
        }
        self.waiters.retain(|(_, waiting)| *waiting != entry.id);
        match self.key(&entry.name) {
            Some(key) if key.id == entry.id && !key.closed => {}
            _ => return (End::Gone, None),
        }
        if entry.keep_closed.is_zero() {
            self.keys.remove(&entry.name);
        } else if let Some(key) = self.key(&entry.name) {
            key.closed = true;
            key.until = Instant::now() + entry.keep_closed;
        }
        let next = self.waiters.iter().find(|(name, _)| *name == entry.name).map(|(_, id)| id.clone());
        (End::Released, next)
    }
}

impl Fake {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn set(&self, fault: Fault) {
        let mut state = self.state();
        state.fault = fault;
        if fault != Fault::Hung {
            // It executes the calls received meanwhile, in order.
            while let Some(call) = state.backlog.pop_front() {
                call(&mut state);
            }
        }
    }

    pub(super) fn set_delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Deletes a key, as an operator may.
    pub(super) fn free(&self, name: &LockName) {
        self.state().keys.remove(name);
    }

    /// Restarts without data.
    pub(super) fn wipe(&self) {
        let mut state = self.state();
        state.keys.clear();
        state.waiters.clear();
        state.gone.clear();
    }

    /// Another Redis client takes the key.
    pub(super) fn take(&self, name: &LockName, owner: &str) {
        let key = Key {
            id: EntryId(owner.to_owned()),
            owner: owner.to_owned(),
            until: Instant::now() + Duration::from_secs(3600),
            closed: false,
        };
        self.state().keys.insert(name.clone(), key);
    }

    /// The holder: the entry's id without its number.
    pub(super) fn holder(&self, name: &LockName) -> Option<String> {
        let mut state = self.state();
        let id = &state.key(name).filter(|key| !key.closed)?.id.0;
        Some(id.rsplit_once('.').map_or(id.as_str(), |(id, _)| id).to_owned())
    }

    pub(super) fn is_closed(&self, name: &LockName) -> bool {
        self.state().key(name).is_some_and(|key| key.closed)
    }

    pub(super) fn waiters(&self) -> usize {
        self.state().waiters.len()
    }

    pub(super) fn attempts(&self) -> usize {
        self.state().attempts
    }

    /// One call: request, execution, answer.
    fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        run: impl FnOnce(&mut State) -> Result<T, CallError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, CallError>> {
        let node = self.clone();
        let call = async move {
            let (fault, delay) = {
                let state = node.state();
                (state.fault, state.delay)
            };
            sleep(delay / 2).await;
            match fault {
                Fault::Dead => Err(CallError::NOT_SENT),
                Fault::LosesCalls => Err(CallError::IN_DOUBT),
                Fault::Hung => {
                    let (answer, answered) = tokio::sync::oneshot::channel();
                    node.state().backlog.push_back(Box::new(move |state| drop(answer.send(run(state)))));
                    answered.await.unwrap_or(Err(CallError::IN_DOUBT))
                }
                Fault::LosesAnswers => {
                    drop(run(&mut node.state()));
                    sleep(delay / 2).await;
                    Err(CallError::IN_DOUBT)
                }
                Fault::None | Fault::Refuses => {
                    let answer = run(&mut node.state());
                    sleep(delay / 2).await;
                    answer
                }
            }
        };
        Box::pin(async move { timeout(limit, call).await.unwrap_or(Err(CallError::IN_DOUBT)) })
    }
}

impl Store for Fake {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'static, Result<Tried, CallError>> {
        self.call(attempt.entry.limit(), move |state| {
            if state.fault == Fault::Refuses {
                let error = BackendError::new(BackendErrorKind::Operator, "wrong password");
                return Ok(Tried::Refused(error));
            }
            Ok(state.attempt(&attempt))
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'static, Result<Vec<Renewed>, CallError>> {
        let limit = entries.iter().map(|entry| entry.limit()).min().unwrap();
        self.call(limit, move |state| Ok(entries.iter().map(|entry| state.renew(entry)).collect()))
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'static, Result<End, CallError>> {
        self.call(entry.limit(), move |state| {
            let (end, next) = state.finish(&entry, doubt);
            for wakes in &state.wakes {
                next.iter().for_each(|next| wakes.deliver(next, Wake::Try(Duration::ZERO)));
            }
            Ok(end)
        })
    }

    fn trouble(&self) -> Option<String> {
        (self.state().fault == Fault::Dead).then(|| "connection refused".to_owned())
    }
}

/// Nodes that answer within a millisecond.
pub(super) fn nodes(count: usize) -> Vec<Fake> {
    let state = || State {
        fault: Fault::None,
        delay: Duration::from_millis(1),
        keys: BTreeMap::new(),
        waiters: Vec::new(),
        gone: BTreeSet::new(),
        backlog: VecDeque::new(),
        attempts: 0,
        wakes: Vec::new(),
    };
    (0..count).map(|_| Fake(Arc::new(Mutex::new(state())))).collect()
}

/// The test's clock: the virtual time of its paused runtime.
pub(super) fn now() -> BootInstant {
    thread_local!(static START: Instant = Instant::now());
    BootInstant::from_nanos(1_000_000_000) + START.with(|start| start.elapsed())
}

/// A client of these nodes; clients share nothing else.
pub(super) fn client(nodes: &[Fake]) -> (RedlockStore, Wakes) {
    let wakes = Wakes::default();
    let node = |(index, fake): (usize, &Fake)| {
        let wakes = Wakes::default();
        fake.state().wakes.push(wakes.clone());
        QuorumNode::new(format!("n{}", index + 1), Arc::new(fake.clone()), wakes)
    };
    let nodes = nodes.iter().enumerate().map(node).collect();
    (RedlockStore::new(nodes, LeaseThread::of_this_test(), wakes.clone(), now), wakes)
}

pub(super) const TTL: Duration = Duration::from_secs(10);

pub(super) fn entry(id: &str) -> Arc<Entry> {
    entry_with(id, Duration::ZERO)
}

pub(super) fn entry_with(id: &str, keep_closed: Duration) -> Arc<Entry> {
    Arc::new(Entry {
        id: EntryId(id.to_owned()),
        name: name(),
        mode: Mode::Exclusive,
        ttl: TTL,
        keep_closed,
        lock_delay: Duration::ZERO,
    })
}

pub(super) fn name() -> LockName {
    "orders/42".parse().unwrap()
}

pub(super) fn attempt(entry: &Arc<Entry>, wait: bool) -> Attempt {
    Attempt {
        entry: entry.clone(),
        first: false,
        wait,
        ttl_from: BootInstant::now(),
        label: entry.id.0.as_str().into(),
        value: Box::default(),
        meta: Box::default(),
    }
}

/// The lock's holder on each node.
pub(super) fn holders(nodes: &[Fake]) -> Vec<Option<String>> {
    nodes.iter().map(|node| node.holder(&name())).collect()
}

/// The number of nodes on which `id` holds.
pub(super) fn held_at(nodes: &[Fake], id: &str) -> usize {
    holders(nodes).iter().filter(|holder| holder.as_deref() == Some(id)).count()
}
