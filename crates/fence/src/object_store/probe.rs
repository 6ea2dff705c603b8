//! The check of a store before its use: does it reject a put whose condition does not hold?
//!
//! Detects stores that ignore conditions (as many S3-compatible stores do, or did in earlier versions), whose
//! ETags don't identify content, or that check and put in two steps. The last is a race, so its detection is
//! probabilistic; the others are always detected. The temporary objects are removed again.

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, PutMode, PutOptions, PutResult, UpdateVersion};

use super::error::{ObjectError, Unfit};
use super::record::Nonce;

/// Number of concurrent puts with the same condition.
const RIVALS: usize = 8;

const CREATE: &str = "a put of an object that exists, with If-None-Match: *";
const STALE: &str = "a put with the ETag of an earlier content (If-Match)";
const ABSENT: &str = "a put of an object that does not exist, with an ETag (If-Match)";

/// The objects of a probe.
struct Probe<'a> {
    store: &'a dyn ObjectStore,
    main: Path,
    absent: Path,
    rivals: Path,
}

/// Checks that `store` rejects a put whose condition does not hold, with temporary objects below
/// `.lockkeeper-probe/` in `prefix`. The fences do so when connecting; others that rely on conditional puts
/// may, too.
///
/// # Errors
/// [`ObjectError::Unfit`] with the reason; [`ObjectError::Store`], [`ObjectError::Random`].
pub async fn probe(store: &dyn ObjectStore, prefix: &Path) -> Result<(), ObjectError> {
    let nonce = Nonce::random().map_err(ObjectError::Random)?;
    let path = |name| prefix.clone().join(".lockkeeper-probe").join(nonce.to_string()).join(name);
    let probe = Probe { store, main: path("main"), absent: path("absent"), rivals: path("rivals") };
    let found = match probe.one_by_one().await {
        Ok(()) => probe.at_once().await,
        Err(error) => Err(error),
    };
    let cleaned = probe.clean().await;
    // An error of the checks takes precedence over one of the cleanup. After successful checks a failed
    // cleanup is the result.
    found.and(cleaned)
}

fn unfit(store: &dyn ObjectStore, why: Unfit) -> ObjectError {
    ObjectError::Unfit { store: store.to_string(), why }
}

impl Probe<'_> {
    /// Sequential puts, each of which has one correct outcome.
    async fn one_by_one(&self) -> Result<(), ObjectError> {
        self.must_be_done("a put of a new object, with If-None-Match: *", "one", PutMode::Create).await?;
        self.must_be_refused(CREATE, &self.main, "two", PutMode::Create).await?;
        let first = self.read("one").await?;
        let update = PutMode::Update(first.clone());
        self.must_be_done("a put with the ETag that was read (If-Match)", "three", update.clone()).await?;
        let second = self.read("three").await?;
        if first.e_tag == second.e_tag {
            let etag = first.e_tag.unwrap_or_default();
            return Err(unfit(self.store, Unfit::SameETag { etag }));
        }
        self.must_be_refused(STALE, &self.main, "four", update).await?;
        self.read("three").await?;
        self.must_be_refused(ABSENT, &self.absent, "five", PutMode::Update(second)).await
    }

    /// Concurrent puts, of which at most one may succeed.
    async fn at_once(&self) -> Result<(), ObjectError> {
        self.one_of_many("If-None-Match: *", &self.rivals, PutMode::Create).await?;
        let base = self.read("three").await?;
        self.one_of_many("one ETag (If-Match)", &self.main, PutMode::Update(base)).await
    }

    async fn one_of_many(&self, what: &'static str, path: &Path, mode: PutMode) -> Result<(), ObjectError> {
        let contents: Vec<String> = (0..RIVALS).map(|rival| format!("rival {rival}")).collect();
        let puts = contents.iter().map(|content| self.put(path, content, mode.clone()));
        let mut done = 0;
        for answer in join_all(puts).await {
            match answer {
                Ok(_) => done += 1,
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(ObjectError::store("put", path)(error)),
            }
        }
        // Zero is valid too: if a response is lost, the HTTP client resends the put, and the second copy
        // fails because the first took effect.
        if done > 1 {
            return Err(unfit(self.store, Unfit::NotAtomic { what, done, of: RIVALS }));
        }
        Ok(())
    }

    async fn put(&self, path: &Path, content: &str, mode: PutMode) -> Result<PutResult, Error> {
        self.store.put_opts(path, content.to_owned().into(), PutOptions::from(mode)).await
    }

    async fn must_be_done(
        &self,
        what: &'static str,
        content: &str,
        mode: PutMode,
    ) -> Result<(), ObjectError> {
        match self.put(&self.main, content, mode).await {
            Ok(_) => Ok(()),
            Err(error) if is_refusal(&error) => {
                // If the HTTP client lost a response and resent the put, the first copy may have taken
                // effect.
                let (found, _) = self.read_probe().await?;
                if found == content.as_bytes() {
                    return Ok(());
                }
                Err(unfit(self.store, Unfit::Unsupported { what, answer: error.to_string() }))
            }
            Err(error) => Err(self.not_supported(what, &self.main, error)),
        }
    }

    async fn must_be_refused(
        &self,
        what: &'static str,
        path: &Path,
        content: &str,
        mode: PutMode,
    ) -> Result<(), ObjectError> {
        match self.put(path, content, mode).await {
            Ok(_) => Err(unfit(self.store, Unfit::Ignored { what })),
            Err(error) if is_refusal(&error) => Ok(()),
            Err(error) => Err(self.not_supported(what, path, error)),
        }
    }

    fn not_supported(&self, what: &'static str, path: &Path, error: Error) -> ObjectError {
        let answer = error.to_string();
        match &error {
            // Recognized by the name of the implementation in the error, since a store that wraps another
            // store need not show it otherwise.
            Error::NotImplemented { implementer, .. } if implementer.contains("LocalFileSystem") => {
                unfit(self.store, Unfit::LocalFiles)
            }
            Error::NotImplemented { .. } | Error::NotSupported { .. } => {
                unfit(self.store, Unfit::Unsupported { what, answer })
            }
            // The response of a server that does not implement the header.
            _ if answer.contains("501 Not Implemented") => {
                unfit(self.store, Unfit::Unsupported { what, answer })
            }
            _ => ObjectError::store("put", path)(error),
        }
    }

    /// The version of the main object, whose content must be `content`.
    async fn read(&self, content: &str) -> Result<UpdateVersion, ObjectError> {
        let (found, version) = self.read_probe().await?;
        if found != content.as_bytes() {
            return Err(unfit(self.store, Unfit::StaleRead));
        }
        if version.e_tag.is_none() {
            return Err(unfit(self.store, Unfit::NoETag));
        }
        Ok(version)
    }

    async fn read_probe(&self) -> Result<(Bytes, UpdateVersion), ObjectError> {
        let failed = |error| ObjectError::store("read", &self.main)(error);
        let got = self.store.get_opts(&self.main, GetOptions::default()).await.map_err(failed)?;
        let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        Ok((got.bytes().await.map_err(failed)?, version))
    }

    async fn clean(&self) -> Result<(), ObjectError> {
        for path in [&self.main, &self.absent, &self.rivals] {
            let mut deleted = self.store.delete_stream(stream::iter([Ok(path.clone())]).boxed());
            while let Some(answer) = deleted.next().await {
                match answer {
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(ObjectError::store("delete", path)(error)),
                }
            }
        }
        Ok(())
    }
}

/// Whether a put was rejected because of its condition.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::AlreadyExists { .. }
            | Error::Precondition { .. }
            | Error::NotModified { .. }
            | Error::NotFound { .. }
    )
}
