//! `file:///dir`: locks between the processes of one host, held by the kernel.
//!
//! A hold is a flock. It ends when its holder releases it, or by the kernel when the holder's process ends
//! for any reason; there is no ttl, and a stopped holder keeps its lock. Beside the flocked file (the *hold
//! file*), each lock in use has a small *record* file. It contains a `lockkeeper_core::Table` for this one
//! lock, so that order, modes, permits, closed holds and breaks follow the same rules as in other backends.
//! Tokens come from one crash-safe counter of the directory.
//!
//! `docs/backends/file.md` is the page for users: guarantees, layout, behaviour in a crash. Reading order
//! here: `store` (the directory), `counter`, `slots`, `state` and `record` (the files), `session_file`
//! (liveness), `conn`, `session`, `acquire`, `finish` (the calls), `inspect`.
//!
//! Notes on the design:
//! - Short flocks (record, counter) are tried in a loop with random pauses instead of a blocking call. So if
//!   a process is stopped while it has such a flock, others get an error after some seconds instead of
//!   hanging.
//! - A hold file created by this backend has the sticky bit and is removed with its lock; one created by a
//!   user stays, so that `flock(1)` can share it (see the page).
//! - A request for several names acquires them one by one in byte order. The highest of the tokens granted
//!   for its names is the token of the request, and the records of the other names store it too.

mod acquire;
mod conn;
mod counter;
mod finish;
mod fs_type;
mod inspect;
mod names;
mod os;
mod reactor;
mod reap;
mod record;
mod session;
mod session_file;
mod slots;
mod state;
mod store;
mod tag;
#[cfg(test)]
mod tests;

#[doc(hidden)]
pub use state::{fuzz, fuzz_seed};

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper_backend::{
    Backend, BackendError, BackendInfo, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError,
    Fencing, LockInfo, Promise, Promises, Push, Reach, Spec, Unsupported, Url,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use self::conn::FileConn;
use self::os::OsError;
use self::store::{Config, FileStore};

const CAPABILITIES: Capabilities = Capabilities {
    backend: "file",
    reach: Reach::Host,
    fencing: Fencing::Tokens { source: "a counter in the directory, on the disk before a grant is told" },
    ttl: false,
    shared: true,
    permits: true,
    subtree: false,
    multi: true,
    wait: true,
    fair: true,
    queue_limit: false,
    keep_closed: true,
    lock_delay: true,
    inspect: true,
    watch: false,
    break_hold: true,
    break_now: false,
    values: false,
    downgrade: false,
    cached: false,
    promises: Promises {
        rising_tokens: Promise::KeptIf(
            "the directory grants fewer than 10^6 times a second over its life and the wall clock is not set back \
             before a directory is made anew",
        ),
        fenced_sections: Promise::KeptIf("the resource has a fence"),
        client_gives_up_first: Promise::KeptIf(
            "nobody deletes the directory or its files under a holder: a flock has no deadline, so a hold is lost only by \
             that, noticed within about a second, or by a break",
        ),
        // There are no keep-alives: the kernel detects the end of a process.
        confirmed_keep_alives: Promise::Kept,
        first_come_first_served: Promise::KeptIf(
            "a waiter counts as alive until its process ends: a stopped one that is granted holds",
        ),
        durable: Promise::KeptIf(
            "the disk keeps what fdatasync wrote: tokens and closed holds survive a power loss; holds end with their \
             processes",
        ),
        ..Promises::ALL_KEPT
    },
};

/// A lock directory as a backend.
pub(crate) struct FileBackend {
    shared: Arc<FileShared>,
}

/// State shared by all sessions of a backend.
struct FileShared {
    config: Config,
    store: Mutex<Arc<FileStore>>,
}

/// The backend's description for users, and its `connect`.
pub const INFO: BackendInfo = BackendInfo {
    example: "file:///dir",
    summary: "a directory, for the processes of this host",
    schemes: &["file"],
    default_port: None,
    has_password: false,
    excludes: "none",
    excluded_by: "none",
    pages: &["file"],
    connect: |url| Box::pin(connect(url)),
};

/// Opens the directory of a URL.
async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    FileBackend::open(url)
}

impl FileBackend {
    /// Opens `file:///dir?tokens_above=N&fuse=allow`, and creates the directory if it is missing.
    ///
    /// # Errors
    /// An invalid URL; a directory that cannot carry locks, is not writable, is damaged, or was made by a
    /// newer program.
    fn open(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
        url.only_parameters(&["tokens_above", "fuse"])?;
        if let Some(host) = url.hosts.first() {
            let wanted = "empty: a directory of this host has three slashes, as in `file:///var/lib/locks`";
            return Err(url.bad_part(host.name.clone(), wanted).into());
        }
        let path = Path::new(&url.path);
        if !path.is_absolute() || url.path.contains('\0') {
            let wanted = "an absolute path, as in `file:///var/lib/locks`";
            return Err(url.bad_part(url.path.clone(), wanted).into());
        }
        let most = lockkeeper_core::limits::RAISE_TOKENS_MAX;
        let tokens_above = url.parameter::<u64>("tokens_above", "a number from 0 to 2^52")?;
        if tokens_above.is_some_and(|above| above > most) {
            return Err(url.bad_part("tokens_above", "a number from 0 to 2^52").into());
        }
        let fuse = url.parameter::<String>("fuse", "`allow`")?;
        if fuse.as_deref().is_some_and(|fuse| fuse != "allow") {
            return Err(url.bad_part("fuse", "`fuse=allow`, or left out").into());
        }
        let config = Config {
            path: path.to_owned(),
            tokens_above,
            fuse_allowed: fuse.is_some(),
            wall_clock: store::wall_clock,
        };
        let backend = Self::with_config(config).map_err(BackendError::from)?;
        Ok(Arc::new(backend))
    }

    fn with_config(config: Config) -> Result<Self, OsError> {
        let store = Mutex::new(Arc::new(FileStore::open(&config, 0)?));
        Ok(Self { shared: Arc::new(FileShared { config, store }) })
    }

    fn with_store<T, F>(
        &self,
        work: impl FnOnce(Arc<FileStore>) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, BackendError>>
    where
        F: Future<Output = Result<T, OsError>> + Send,
        T: Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { Ok(work(shared.store()?).await?) })
    }
}

impl FileShared {
    /// The directory at the path. If it or its counter was deleted, a new one is created, with tokens above
    /// all those seen in the old one.
    fn store(&self) -> Result<Arc<FileStore>, OsError> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if !store.is_current() {
            let known = store.counter.highest();
            *store = Arc::new(FileStore::open(&self.config, known)?);
        }
        Ok(Arc::clone(&store))
    }
}

impl Backend for FileBackend {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        Arc::new(FileConn::new(Arc::clone(&self.shared), spec, label, pushes))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'static, Result<LockInfo, BackendError>> {
        self.with_store(|store| inspect::inspect(store, name))
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'static, Result<Vec<LockInfo>, BackendError>> {
        self.with_store(|store| inspect::list(store, prefix))
    }

    fn check_token(
        &self,
        name: LockName,
        token: Token,
    ) -> BoxFuture<'static, Result<TokenStatus, BackendError>> {
        self.with_store(move |store| inspect::check_token(store, name, token.get()))
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'static, Result<Broken, BackendError>> {
        self.with_store(|store| inspect::break_hold(store, order))
    }
}

fn unsupported_subtree() -> Unsupported {
    Unsupported {
        backend: "file",
        what: "lock a subtree",
        why: "a flock knows one name, not those below it",
        instead: "list the names with `all([..])`, or use `memory:` or `lockkeeper://`",
    }
}
