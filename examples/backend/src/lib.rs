//! `memcached://host`: an example of a lock service behind Lockkeeper's API, in less than 250 lines. It passes the contract suite
//! (`tests/contract.rs`). docs/write-a-backend.md leads through it.
//!
//! A lock is an item that `add` creates and that expires. memcached may evict it at any time, so this is for work where two
//! holders do no harm.

mod memcached;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_backend::io::{LeaseThread, SharedLeaseThread};
use lockkeeper_backend::leased::{Attempt, Entry, LeasedConn, Renewed, Store, Tried, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendErrorKind, BackendInfo, BoxFuture, Busy, CallError, Capabilities, Conn,
    ConnectError, Fencing, Granted, HolderInfo, LockInfo, Promise, Promises, Push, Spec, Url,
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
        harmless_retries: Promise::KeptIf("no call arrives after its connection was closed; else nobody holds for a ttl"),
        first_come_first_served: Promise::NotKept("waiters try again after random pauses"),
        durable: Promise::NotKept("the server keeps nothing on disk"),
        ..Promises::ALL_KEPT
    },
    ..Capabilities::minimal(
        "memcached",
        Fencing::None { why: "memcached may forget a counter", instead: "use a service with tokens" },
    )
};

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

    fn inspect(&self, name: LockName) -> BoxFuture<Result<LockInfo, BackendError>> {
        let store = self.store.clone();
        Box::pin(async move { store.look(name).await })
    }
}

impl Store for MemcachedStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<Result<Tried, CallError>> {
        let server = self.server.clone();
        self.call(async move {
            let entry = &attempt.entry;
            let Some(key) = key(&entry.name) else {
                let what = format!("`{}` is no key of memcached: at most {NAME_BYTES_MAX} bytes of ASCII", entry.name);
                return Ok(Tried::Refused(BackendError::new(BackendErrorKind::Refused, what)));
            };
            let ours = format!("{}\n{}", entry.id, attempt.label);
            // The second time is for an item that was gone before it could be read.
            for _ in 0..2 {
                if server.add(&key, &ours, entry.ttl, entry.limit()).await? {
                    return Ok(Tried::Granted(Granted::default()));
                }
                let Some(item) = server.get(&key, entry.limit()).await? else { continue };
                // An earlier attempt of this entry has created it, and its answer was lost.
                if item.value == ours {
                    match server.replace(&key, &item, entry.ttl, entry.limit()).await? {
                        true => return Ok(Tried::Granted(Granted::default())),
                        false => continue,
                    }
                }
                if !attempt.wait {
                    return Ok(Tried::Busy(Busy { holder: Some(owner(&item)), queued_ahead: 0 }));
                }
                break;
            }
            Ok(Tried::Waits { ahead: 0, again: Duration::from_millis(50) })
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<Result<Vec<Renewed>, CallError>> {
        let server = self.server.clone();
        self.call(async move {
            let mut renewed = Vec::with_capacity(entries.len());
            for entry in entries {
                let kept = match held(&server, &entry).await? {
                    Some((key, item)) => server.replace(&key, &item, entry.ttl, entry.limit()).await?,
                    None => false,
                };
                renewed.push(if kept { Renewed::Kept } else { Renewed::Gone });
            }
            Ok(renewed)
        })
    }

    fn finish(&self, entry: Arc<Entry>, _doubt: bool) -> BoxFuture<Result<End, CallError>> {
        let server = self.server.clone();
        self.call(async move {
            // It may be renewed between the two calls.
            while let Some((key, item)) = held(&server, &entry).await? {
                if server.delete(&key, item.version, entry.limit()).await? {
                    return Ok(End::Released);
                }
            }
            Ok(End::Gone)
        })
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().expect("no panics").clone()
    }
}
