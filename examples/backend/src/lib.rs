//! `memcached://host`: an example of a lock service behind Lockkeeper's API, in less than 250 lines beside
//! the client of its protocol. It passes the contract suite (`tests/contract.rs`). docs/write-a-backend.md
//! leads through it.
//!
//! A lock is an item that `add` creates and that expires. memcached may evict it at any time, so this is for
//! work where two holders do no harm.

mod memcached;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_backend::io::{LeaseThread, SharedLeaseThread};
use lockkeeper_backend::leased::{Attempt, Entry, LeasedConn, Note, Renewed, Store, Tried, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendErrorKind, BackendInfo, BoxFuture, Busy, CallError, Capabilities, Conn,
    ConnectError, Fencing, Granted, HolderInfo, LockInfo, Promise, Promises, Push, Spec, Url, decode_meta,
};
use lockkeeper_core::{End, LockName};
use memcached::{Item, Memcached};
use tokio::sync::mpsc::UnboundedSender;

/// What users see of it.
pub const INFO: BackendInfo = BackendInfo {
    example: "memcached://host",
    summary: "memcached, for work where two holders do no harm",
    schemes: &["memcached"],
    default_port: Some(11211),
    has_password: false,
    excludes: "none",
    excluded_by: "none",
    pages: &[],
    connect: |url| Box::pin(connect(url)),
};

static CAPABILITIES: Capabilities = Capabilities {
    ttl: true,
    wait: true,
    inspect: true,
    promises: Promises {
        exclusion: Promise::KeptIf("the server evicts nothing and is not restarted"),
        rising_tokens: Promise::NotKept("there are no tokens"),
        fenced_sections: Promise::NotKept("there are no tokens"),
        stable_holds: Promise::KeptIf("the server evicts nothing and is not restarted"),
        harmless_retries: Promise::KeptIf(
            "no call arrives after its connection was closed; else nobody holds for a ttl",
        ),
        first_come_first_served: Promise::NotKept("waiters try again after random pauses"),
        survives_stalls: Promise::NotKept("a waiter whose attempts have no answer for a ttl ends"),
        durable: Promise::NotKept("the server keeps nothing on disk"),
        ..Promises::ALL_KEPT
    },
    ..Capabilities::minimal(
        "memcached",
        Fencing::None { why: "memcached may forget a counter", instead: "use a service with tokens" },
    )
};

/// Keys begin with it.
const PREFIX: &str = "lockkeeper:";
/// How long an inspection may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest name: a key has at most 250 bytes.
const NAME_BYTES_MAX: usize = 230;

struct MemcachedBackend {
    store: Arc<MemcachedStore>,
    lease_thread: LeaseThread,
}

struct MemcachedStore {
    server: Memcached,
    /// The latest failure, for display.
    trouble: Mutex<Option<String>>,
}

async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    static LEASE_THREAD: SharedLeaseThread = SharedLeaseThread::new();
    url.only_parameters(&[])?;
    let [host] = url.hosts.as_slice() else {
        return Err(url.bad_part("", "one host, as in `memcached://host:11211`").into());
    };
    let server = Memcached { address: host.address(11211) };
    let store = Arc::new(MemcachedStore { server, trouble: Mutex::default() });
    store.look(LockName::parse("lockkeeper/connect").map_err(BackendError::from)?).await?;
    Ok(Arc::new(MemcachedBackend { store, lease_thread: LEASE_THREAD.get("lockkeeper-memcached")? }))
}

impl Backend for MemcachedBackend {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        LeasedConn::new(self.store.clone(), Wakes::default(), spec, label, pushes)
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(self.store.look(name))
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move {
            let keys = self.store.server.keys(LIMIT).await.map_err(|error| self.store.silent(error))?;
            let names = keys.iter().filter_map(|key| LockName::parse(key.strip_prefix(PREFIX)?).ok());
            let mut locks = Vec::new();
            for name in
                names.filter(|name| prefix.as_ref().is_none_or(|of| of == name || of.is_above(name.as_str())))
            {
                locks.push(self.store.look(name).await?);
            }
            // An item may have expired meanwhile.
            locks.retain(|lock| lock.hold_count > 0);
            locks.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            Ok(locks)
        })
    }
}

impl Store for MemcachedStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move {
            let Some(key) = key(&attempt.entry.name) else {
                let what = format!(
                    "`{}` is no key of memcached: up to {NAME_BYTES_MAX} bytes of ASCII",
                    attempt.entry.name
                );
                return Ok(Tried::Refused(BackendError::new(BackendErrorKind::Refused, what)));
            };
            self.answered(self.try_to_hold(&key, &attempt).await)
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move {
            let mut renewed = Vec::with_capacity(entries.len());
            for entry in entries {
                renewed.push(self.answered(self.extend(&entry).await)?);
            }
            Ok(renewed)
        })
    }

    fn finish(&self, entry: Arc<Entry>, _doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.answered(self.end(&entry).await) })
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().ok()?.clone()
    }
}

impl MemcachedStore {
    /// A call without an answer may have been executed; the reason is kept for display.
    fn answered<T>(&self, answer: io::Result<T>) -> Result<T, CallError> {
        answer.map_err(|error| {
            if let Ok(mut trouble) = self.trouble.lock() {
                *trouble = Some(format!("{}: {error}", self.server.address));
            }
            CallError::IN_DOUBT
        })
    }

    fn silent(&self, error: io::Error) -> BackendError {
        let what = format!("memcached at {} does not answer: {error}", self.server.address);
        BackendError::caused(BackendErrorKind::Unreachable, what, error)
    }

    async fn try_to_hold(&self, key: &str, attempt: &Attempt) -> io::Result<Tried> {
        let entry = &attempt.entry;
        // An earlier attempt of this entry may have created its item, and its answer was lost.
        let holds = self.server.add(key, &Note::of(attempt).bytes(), entry.ttl, entry.limit()).await?
            || self.extend(entry).await? == Renewed::Kept;
        if holds {
            return Ok(Tried::Granted(Granted::default()));
        }
        if attempt.wait {
            return Ok(Tried::Waits { ahead: 0, again: Duration::from_millis(50) });
        }
        let holder = self.server.get(key, entry.limit()).await?.map(|item| shown(&item).label);
        Ok(Tried::Busy(Busy { holder, queued_ahead: 0 }))
    }

    async fn extend(&self, entry: &Entry) -> io::Result<Renewed> {
        if let Some((key, item)) = self.held(entry).await?
            && self.server.extend(&key, &item, entry.ttl, entry.limit()).await?
        {
            return Ok(Renewed::Kept);
        }
        Ok(Renewed::Gone)
    }

    async fn end(&self, entry: &Entry) -> io::Result<End> {
        // It may be renewed between the two calls.
        while let Some((key, item)) = self.held(entry).await? {
            if self.server.delete(&key, item.version, entry.limit()).await? {
                return Ok(End::Released);
            }
        }
        Ok(End::Gone)
    }

    /// The item of an entry that holds.
    async fn held(&self, entry: &Entry) -> io::Result<Option<(String, Item)>> {
        let Some(key) = key(&entry.name) else { return Ok(None) };
        let item = self.server.get(&key, entry.limit()).await?;
        let is_its_own = |item: &Item| Note::read(&item.value).is_some_and(|note| note.entry == entry.id.0);
        Ok(item.filter(is_its_own).map(|item| (key, item)))
    }

    async fn look(&self, name: LockName) -> Result<LockInfo, BackendError> {
        let Some(key) = key(&name) else { return Ok(LockInfo::free(name)) };
        let item = self.server.get(&key, LIMIT).await.map_err(|error| self.silent(error))?;
        Ok(LockInfo::held_by(name, item.iter().map(shown).collect()))
    }
}

/// `None` if it can't be a key.
fn key(name: &LockName) -> Option<String> {
    let fits =
        name.as_str().len() <= NAME_BYTES_MAX && name.as_str().bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| format!("{PREFIX}{name}"))
}

/// The holder, as it is shown.
fn shown(item: &Item) -> HolderInfo {
    let note = Note::read(&item.value).unwrap_or_default();
    HolderInfo { meta: decode_meta(note.meta.as_bytes()), ..HolderInfo::exclusive(note.owner) }
}
