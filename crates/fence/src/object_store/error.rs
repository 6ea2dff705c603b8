//! Errors of the object fences.

use object_store::path::Path;

use super::CONTENT_BYTES_MAX;
use super::record::VERSION;
use crate::resource::BadResource;
use crate::rule::Refused;

/// Why a call at an object fence failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The rule refused the section; nothing was written.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The text is not a valid resource name.
    #[error(transparent)]
    BadResource(#[from] BadResource),
    /// The name is valid, but no object in a store can have it.
    #[error("`{resource}` can't be the name of an object: {why}; write segments with one `/` between them")]
    BadPath {
        /// The name as given.
        resource: String,
        /// The reason.
        why: String,
    },
    /// The store lacks a property that the fence requires. Detected on connect.
    #[error("the store {store} can't be fenced: {why}")]
    Unfit {
        /// The store's name for itself.
        store: String,
        /// The missing property.
        why: Unfit,
    },
    /// Other writers changed the object first, in all tries of the call.
    #[error(
        "`{resource}` was changed by others under each of {tries} tries; nothing was done. Try again with the same \
         token, with fewer writers at a time or with more tries (`tries_at_most`)"
    )]
    Contended {
        /// The resource.
        resource: String,
        /// Number of tries: puts, and repeated reads.
        tries: u32,
    },
    /// The outcome of a change is unknown.
    #[error(
        "whether `{resource}` was changed is not known after {tries} tries: the store gave no answer that tells. It may \
         still happen, until the object is changed next. Enter again with the same token: that settles it, and gives \
         what is there"
    )]
    Unsure {
        /// The resource.
        resource: String,
        /// Number of tries: puts, and repeated reads.
        tries: u32,
        /// The store's last error, if there was one.
        source: Option<::object_store::Error>,
    },
    /// The object existed and is gone: it was removed by a client that bypassed the fence.
    #[error(
        "`{resource}` was removed by something other than this fence, and its marks with it (or the store's reads lag). Keep everybody else from \
         removing it; then `reset` it to the last token granted (`lockkeeper check-token`)"
    )]
    Removed {
        /// The resource.
        resource: String,
    },
    /// The object was not written by a fence.
    #[error(
        "the object `{resource}` was not written by a fence; it was left as it is. Give another name, or move the object \
         away and write its content through the fence"
    )]
    Foreign {
        /// The resource.
        resource: String,
    },
    /// The object belongs to the other kind of fence.
    #[error("the object `{resource}` holds a {found}: use `{use_instead}` for it")]
    OtherFence {
        /// The resource.
        resource: String,
        /// The actual kind of the object.
        found: &'static str,
        /// The fence that it belongs to.
        use_instead: &'static str,
    },
    /// The object is damaged. It is never treated as "never seen".
    #[error(
        "the object `{resource}` is damaged: {why}; nothing was done. Stop all sections, move it away \
         or restore an earlier version, and `reset` the resource to the last token granted (`lockkeeper check-token`) before \
         anyone writes"
    )]
    Corrupt {
        /// The resource.
        resource: String,
        /// The reason.
        why: &'static str,
    },
    /// The format version of the object is not supported by this program.
    #[error(
        "the object `{resource}` has format {version}; this program reads format {VERSION}; nothing was done. Use the \
         newer program that wrote it"
    )]
    Newer {
        /// The resource.
        resource: String,
        /// The version of the object's format.
        version: u32,
    },
    /// The content is too long to be stored with the marks.
    #[error(
        "{bytes} bytes are too many for `{resource}`: the limit is {CONTENT_BYTES_MAX}, since every enter moves them \
         again. Use `PointerFence`, which has no limit"
    )]
    TooLarge {
        /// The resource.
        resource: String,
        /// The content's length in bytes.
        bytes: u64,
    },
    /// A sweep may have removed the data of this draft.
    #[error(
        "the draft `{draft}` was given up by a sweep of `{resource}` and may be gone; nothing was published. Make a new \
         draft, upload again, publish that; and sweep only what is older than an upload takes"
    )]
    DraftSwept {
        /// The resource.
        resource: String,
        /// The object that was uploaded.
        draft: Path,
    },
    /// No data were uploaded to the draft.
    #[error("there is no object `{draft}`; nothing was published. Upload the data to it before publishing")]
    DraftMissing {
        /// The missing object.
        draft: Path,
    },
    /// The data that the pointer names are missing, or have another length than those published.
    #[error(
        "the data of `{resource}` in `{data}` {why}: something other than the fence has changed it. Restore it, or write \
         the resource anew"
    )]
    DataLost {
        /// The resource.
        resource: String,
        /// The missing or changed object.
        data: Path,
        /// What differs.
        why: String,
    },
    /// The store returned an error, or could not be reached.
    #[error("cannot {doing} `{path}`{}", advice(source))]
    Store {
        /// The step, as a verb.
        doing: &'static str,
        /// The object on which it failed.
        path: Path,
        /// The store's error.
        source: ::object_store::Error,
    },
    /// The system's random number generator failed; without random nonces, changes can't be told apart.
    #[error("the system gives no random numbers; nothing was done")]
    Random(#[source] getrandom::Error),
}

impl ObjectError {
    /// For `map_err`: the failed step and its object.
    pub(super) fn store(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(::object_store::Error) -> Self + use<> {
        let path = path.clone();
        move |source| Self::Store { doing, path, source }
    }
}

/// Advice on common faults; the cause itself is the error's source.
fn advice(source: &::object_store::Error) -> &'static str {
    match source {
        ::object_store::Error::PermissionDenied { .. } => {
            ": not allowed; the fence needs to read and to put its objects, to list and delete the data of pointers, and \
             to delete below `.lockkeeper-probe/`"
        }
        ::object_store::Error::Unauthenticated { .. } => ": the store does not accept the credentials",
        ::object_store::Error::NotFound { .. } => ": not there; does the bucket exist?",
        _ => "",
    }
}

/// Why a store is unfit for a fence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// A store of local files.
    #[error(
        "it keeps plain files, and has no put that depends on what is there (If-Match); use `FileFence` for files"
    )]
    LocalFiles,
    /// Conditional puts are not supported.
    #[error(
        "it refused {what}: {answer}; a fence needs puts with If-None-Match and If-Match (for S3 see the store's setting \
         of conditional puts)"
    )]
    Unsupported {
        /// The rejected put.
        what: &'static str,
        /// The store's answer.
        answer: String,
    },
    /// A put took effect although its condition did not hold.
    #[error(
        "it answered \"done\" to {what}, which it had to refuse: it ignores the condition, and one writer would overwrite \
         another unseen"
    )]
    Ignored {
        /// The put.
        what: &'static str,
    },
    /// Several of the concurrent puts took effect, of which at most one may.
    #[error(
        "it answered \"done\" to {done} of {of} simultaneous puts with {what}, of which only one may be done: it checks the \
         condition and puts in two steps"
    )]
    NotAtomic {
        /// The condition of the puts.
        what: &'static str,
        /// Number of puts that took effect.
        done: usize,
        /// Number of concurrent puts.
        of: usize,
    },
    /// The store returns no ETag.
    #[error("it gives no ETag with an object, and a put can't name what it is to replace")]
    NoETag,
    /// The ETag does not change with the content.
    #[error("it gave the ETag {etag} to two different contents, so a put can't name what it is to replace")]
    SameETag {
        /// The ETag.
        etag: String,
    },
    /// A read did not return the content of the last put.
    #[error("it gave back another content than was put last: a read must see the latest put")]
    StaleRead,
}
