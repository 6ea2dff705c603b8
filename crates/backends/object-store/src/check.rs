//! The check of a store when connecting, and what its settings imply.
//!
//! The first client of a prefix runs the fence's probe, and leaves an object that says so. Each later one
//! sends two puts of that object that the store must refuse: a gateway in between, or another store with a
//! copy of the objects, may ignore conditions.

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_backend::{BackendError, BackendErrorKind, Finding};
use lockkeeper_fence::ObjectError;
use object_store::UpdateVersion;
use object_store::path::Path;
use tokio::time::Instant;

use super::objects::{ObjectFailure, Objects};
use super::settings::Provider;

/// The object that says that the probe has passed.
const PROBED: &str = ".lockkeeper";
const PROBED_TEXT: &[u8] =
    b"Below this prefix are locks of Lockkeeper. Do not delete them: their tokens must rise.\n";
/// Time limit of one call, and of the probe.
const LIMIT: Duration = Duration::from_secs(10);
const PROBE_LIMIT: Duration = Duration::from_secs(60);

impl Objects {
    /// Checks that the store refuses a put whose condition does not hold.
    pub(super) async fn check(&self) -> Result<(), BackendError> {
        let path = self.path(PROBED)?;
        let deadline = Instant::now() + LIMIT;
        if self.refuses_stale_put(&path, deadline).await? && self.refuses_create(&path, deadline).await? {
            return Ok(());
        }
        self.probe().await?;
        match self.put(&path, Bytes::from_static(PROBED_TEXT), None, Instant::now() + LIMIT).await {
            // Another client has probed at the same time.
            Ok(_) | Err(ObjectFailure::Answered(_)) => Ok(()),
            Err(failure) => Err(self.explained(failure)),
        }
    }

    /// Whether a put with a version that no object has is refused. Done: the store ignores the condition.
    async fn refuses_stale_put(&self, path: &Path, deadline: Instant) -> Result<bool, BackendError> {
        let never = UpdateVersion {
            e_tag: Some(r#""00000000000000000000000000000000""#.to_owned()),
            version: Some("1".to_owned()),
        };
        let put = self.put(path, Bytes::from_static(PROBED_TEXT), Some(never), deadline).await;
        self.is_refused(put, "If-Match")
    }

    /// Whether the object exists already, and is not replaced.
    async fn refuses_create(&self, path: &Path, deadline: Instant) -> Result<bool, BackendError> {
        match self.get(path, deadline).await.map_err(|failure| self.explained(failure))? {
            None => Ok(false),
            Some(_) => {
                let put = self.put(path, Bytes::from_static(PROBED_TEXT), None, deadline).await;
                self.is_refused(put, "If-None-Match: *")
            }
        }
    }

    fn is_refused(
        &self,
        put: Result<UpdateVersion, ObjectFailure>,
        condition: &str,
    ) -> Result<bool, BackendError> {
        match put {
            Err(ObjectFailure::Answered(_)) => Ok(true),
            Err(failure) => Err(self.explained(failure)),
            Ok(_) => {
                let what = format!(
                    "{} can't hold locks: it answered \"done\" to a put with {condition} that it had to refuse, so \
                     two clients would hold one lock; use a store or a version of it that honours conditions",
                    self.settings.shown()
                );
                Err(BackendError::new(BackendErrorKind::Refused, what))
            }
        }
    }

    async fn probe(&self) -> Result<(), BackendError> {
        let prefix = self.path("")?;
        let probe = lockkeeper_fence::object_store::probe(self.store.as_ref(), &prefix);
        let failed =
            |kind, what: String| Err(BackendError::new(kind, format!("{}: {what}", self.settings.shown())));
        match tokio::time::timeout(PROBE_LIMIT, probe).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(ObjectError::Unfit { why, .. })) => {
                failed(BackendErrorKind::Refused, format!("it can't hold locks: {why}"))
            }
            // The probe's own objects stay.
            Ok(Err(error @ ObjectError::Store { doing: "delete", .. })) => {
                tracing::warn!(%error, "objects of the check of the store are not removed");
                Ok(())
            }
            Ok(Err(ObjectError::Store { source, .. })) => Err(self.explained(self.classified(&source).0)),
            Ok(Err(error)) => failed(BackendErrorKind::Operator, error.to_string()),
            Err(_) => failed(BackendErrorKind::Unreachable, format!("no answers within {PROBE_LIMIT:?}")),
        }
    }

    /// What the store's settings imply for locks.
    pub(super) async fn findings(&self) -> Result<Vec<Finding>, BackendError> {
        let poll = self.settings.poll(Duration::from_secs(30));
        let mut found = vec![Finding {
            spoils: false,
            says: format!(
                "waiters poll every {:?} to {poll:?} with a ttl of 30 s (`poll_ms`), a request each: a lock is handed \
                 over that much late, in no order",
                poll / 2
            ),
        }];
        let path = self.path(PROBED)?;
        let read =
            self.get(&path, Instant::now() + LIMIT).await.map_err(|failure| self.explained(failure))?;
        // Google gives a generation to each object, versioned or not.
        let has_versions =
            read.is_some_and(|read| read.version.version.is_some_and(|version| version != "null"));
        if has_versions && self.settings.provider != Provider::Google {
            found.push(Finding {
                spoils: false,
                says: "the bucket keeps old versions: a hold with a ttl of 30 s leaves 8,640 a day; add a lifecycle rule \
                       that deletes noncurrent versions below the prefix"
                    .to_owned(),
            });
        }
        Ok(found)
    }
}
