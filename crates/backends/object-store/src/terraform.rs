//! `layout=terraform`: the lock object of Terraform and OpenTofu (`use_lockfile`), which they create beside a
//! state, and delete.
//!
//! Nothing expires, there is no counter, and stores' clients delete without a condition: all as in those
//! programs. The name of a lock is the key of a state.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{Attempt, Entry, LeasedConn, Renewed, Store, Tried, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendErrorKind, BoxFuture, Busy, CallError, Capabilities, Conn, Fencing,
    Finding, Granted, HolderInfo, LockInfo, Promise, Promises, Push, Spec, decode_meta,
};
use lockkeeper_core::{End, LockName};
use object_store::ObjectStoreExt;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::objects::{ObjectFailure, Objects, Overtaken};

/// Suffix of the objects of locks.
const SUFFIX: &str = ".tflock";
/// The operation of our holds.
const OPERATION: &str = "lockkeeper";
/// Time limit of an inspection's call.
const LIMIT: Duration = Duration::from_secs(10);
/// Locks that a list reads at a time.
const READS: usize = 16;

/// The object's content, as those programs write it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LockInfoJson {
    #[serde(rename = "ID")]
    id: String,
    operation: String,
    #[serde(default)]
    info: String,
    #[serde(default)]
    who: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    created: String,
    #[serde(default)]
    path: String,
}

impl LockInfoJson {
    fn is_ours(&self) -> bool {
        self.operation == OPERATION
    }

    /// The holder, for display.
    fn shown(&self) -> String {
        if self.is_ours() {
            return self.who.clone();
        }
        format!("{} ({} of Terraform)", self.who, self.operation)
    }
}

/// The locks of states.
pub(super) struct TerraformLocks(pub(super) Objects);

pub(super) struct TerraformBackend {
    pub(super) locks: Arc<TerraformLocks>,
    pub(super) lease_thread: LeaseThread,
    pub(super) capabilities: Capabilities,
}

pub(super) fn capabilities(backend: &'static str) -> Capabilities {
    let fencing = Fencing::None {
        why: "the object is created and deleted, and no counter outlives it",
        instead: "leave out `layout=terraform`; then Terraform is not excluded",
    };
    Capabilities {
        wait: true,
        inspect: true,
        promises: Promises {
            rising_tokens: Promise::NotKept("there are no tokens"),
            fenced_sections: Promise::NotKept("there are no tokens for a fence to compare"),
            stable_holds: Promise::KeptIf("nobody forces an unlock while a release is under way"),
            client_gives_up_first: Promise::NotKept(
                "a forced unlock frees the lock at once, and its holder learns of it only when it verifies or releases",
            ),
            harmless_retries: Promise::KeptIf(
                "no create arrives after the client has given it up: that leaves the lock held (`terraform force-unlock`)",
            ),
            first_come_first_served: Promise::NotKept(
                "there is no queue: whoever looks first gets a free lock",
            ),
            survives_stalls: Promise::NotKept(
                "a waiter whose look is not answered in time ends, without knowing whether it got the lock",
            ),
            ..Promises::ALL_KEPT
        },
        ..Capabilities::minimal(backend, fencing)
    }
}

impl TerraformLocks {
    fn key(name: &LockName) -> String {
        format!("{name}{SUFFIX}")
    }

    /// The lock's content; `None`: it is free.
    async fn read(&self, name: &LockName, deadline: Instant) -> Result<Option<LockInfoJson>, ObjectFailure> {
        let path = self.0.path(&Self::key(name)).map_err(ObjectFailure::Refused)?;
        let Some(read) = self.0.get(&path, deadline).await? else { return Ok(None) };
        serde_json::from_slice(&read.bytes).map(Some).map_err(|error| {
            let what = format!("the object `{path}` is no lock of Terraform: {error}");
            ObjectFailure::Refused(BackendError::new(BackendErrorKind::Operator, what))
        })
    }

    async fn try_hold(&self, attempt: &Attempt) -> Result<Tried, ObjectFailure> {
        let (entry, objects) = (&*attempt.entry, &self.0);
        let deadline = Instant::now() + entry.limit();
        let path = objects.path(&Self::key(&entry.name)).map_err(ObjectFailure::Refused)?;
        let state = format!("{}/{}", objects.settings.bucket, path.as_ref().trim_end_matches(SUFFIX));
        let content = LockInfoJson {
            id: entry.id.0.clone(),
            operation: OPERATION.to_owned(),
            info: String::from_utf8_lossy(&attempt.meta).into_owned(),
            who: attempt.label.to_string(),
            version: concat!("lockkeeper ", env!("CARGO_PKG_VERSION")).to_owned(),
            created: humantime::format_rfc3339_nanos(SystemTime::now()).to_string(),
            path: state,
        };
        let bytes = serde_json::to_vec(&content).unwrap_or_default();
        let granted = || Ok(Tried::Granted(Granted::default()));
        match objects.put(&path, bytes.into(), None, deadline).await {
            Ok(_) => return granted(),
            // It may be held by an earlier attempt of this entry.
            Err(ObjectFailure::Answered(Overtaken)) => {}
            Err(failure) => return Err(failure),
        }
        match self.read(&entry.name, deadline).await? {
            Some(held) if held.id == entry.id.0 => granted(),
            held if attempt.wait => {
                let pause = objects.settings.poll(entry.ttl).mul_f64(0.5 + fastrand::f64() / 2.0);
                let again = if held.is_some() { pause } else { Duration::ZERO };
                Ok(Tried::Waits { ahead: 1, again })
            }
            held => Ok(Tried::Busy(Busy { holder: held.map(|held| held.shown()), queued_ahead: 0 })),
        }
    }

    async fn renew_one(&self, entry: &Entry) -> Result<Renewed, ObjectFailure> {
        let held = self.read(&entry.name, Instant::now() + entry.limit()).await?;
        let is_own = held.is_some_and(|held| held.id == entry.id.0);
        Ok(if is_own { Renewed::Kept } else { Renewed::Gone })
    }

    async fn end(&self, entry: &Entry) -> Result<End, ObjectFailure> {
        let deadline = Instant::now() + entry.limit();
        match self.read(&entry.name, deadline).await? {
            Some(held) if held.id == entry.id.0 => {
                let path = self.0.path(&Self::key(&entry.name)).map_err(ObjectFailure::Refused)?;
                self.0.by(deadline, self.0.store.delete(&path)).await?;
                Ok(End::Released)
            }
            _ => Ok(End::Gone),
        }
    }

    async fn lock_info(&self, name: LockName) -> Result<LockInfo, BackendError> {
        let held = self.read(&name, Instant::now() + LIMIT).await;
        let held = held.map_err(|failure| self.0.explained(failure))?;
        let holder = |held: LockInfoJson| {
            let mut meta = if held.is_ours() {
                decode_meta(held.info.as_bytes())
            } else {
                vec![("operation".to_owned(), held.operation.clone()), ("info".to_owned(), held.info.clone())]
            };
            meta.extend([("id".to_owned(), held.id.clone()), ("created".to_owned(), held.created.clone())]);
            meta.retain(|(_, value)| !value.is_empty());
            HolderInfo { meta, ..HolderInfo::exclusive(held.shown()) }
        };
        Ok(LockInfo::held_by(name, held.map(holder).into_iter().collect()))
    }

    async fn list(&self, prefix: Option<&LockName>) -> Result<Vec<LockInfo>, BackendError> {
        let names = self.0.names(SUFFIX, prefix).await?;
        let infos = stream::iter(names.into_iter().map(|name| self.lock_info(name))).buffered(READS);
        infos.try_filter(|info| std::future::ready(!info.holds.is_empty())).try_collect().await
    }
}

impl Store for TerraformLocks {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move { self.try_hold(&attempt).await.or_else(ObjectFailure::of_attempt) })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move {
            let renewals = entries
                .into_iter()
                .map(|entry| async move { self.renew_one(&entry).await.map_err(ObjectFailure::of_repeated) });
            stream::iter(renewals).buffered(READS).try_collect().await
        })
    }

    fn finish(&self, entry: Arc<Entry>, _: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.end(&entry).await.map_err(ObjectFailure::of_repeated) })
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble().map(|error| error.to_string())
    }
}

impl Backend for TerraformBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        LeasedConn::new(self.locks.clone(), Wakes::default(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(async move { self.locks.lock_info(name).await })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move { self.locks.list(prefix.as_ref()).await })
    }

    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        Box::pin(async move { self.locks.0.findings().await })
    }
}
