//! What can go wrong at a fence of objects, and whose move is next.

use object_store::path::Path;

use super::CONTENT_BYTES_MAX;
use super::record::VERSION;
use crate::resource::BadResource;
use crate::rule::Refused;

/// Why a call at a fence of objects did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The rule said no; nothing was written.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A name that no resource can have.
    #[error(transparent)]
    BadResource(#[from] BadResource),
    /// A name that no object of a store can have.
    #[error("`{resource}` can't be the name of an object: {why}; write segments with one `/` between them")]
    BadPath {
        /// The name as given.
        resource: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store does not keep what the fence rests on. Found out when connecting.
    #[error("the store {store} can't be fenced: {why}")]
    Unfit {
        /// What the store calls itself.
        store: String,
        /// What it did.
        why: Unfit,
    },
    /// Others changed the object under each try.
    #[error(
        "`{resource}` was changed by others under each of {tries} tries; nothing was done. Try again with the same \
         token, with fewer writers at a time or with more tries (`tries_at_most`)"
    )]
    Contended {
        /// The resource.
        resource: String,
        /// How many puts were tried.
        tries: u32,
    },
    /// The store did not say whether a change is in, and it can't be found out.
    #[error(
        "whether `{resource}` was changed is not known after {tries} tries: the store gave no answer that tells. It may \
         still happen, until the object is changed next. Enter again with the same token: that settles it, and gives \
         what is there"
    )]
    Unsure {
        /// The resource.
        resource: String,
        /// How many puts were tried.
        tries: u32,
        /// What the store said last, if it was an error.
        source: Option<::object_store::Error>,
    },
    /// The object was there and is gone: somebody went round the fence.
    #[error(
        "`{resource}` was removed by something other than this fence, and its marks with it (or the store's reads lag). Keep everybody else from \
         removing it; then `reset` it to the last token granted (`lockkeeper check-token`)"
    )]
    Removed {
        /// The resource.
        resource: String,
    },
    /// An object that no fence has written.
    #[error(
        "the object `{resource}` was not written by a fence; it was left as it is. Give another name, or move the object \
         away and write its content through the fence"
    )]
    Foreign {
        /// The resource.
        resource: String,
    },
    /// An object of the other kind of fence.
    #[error("the object `{resource}` holds a {found}: use `{use_instead}` for it")]
    OtherFence {
        /// The resource.
        resource: String,
        /// What it holds.
        found: &'static str,
        /// Which fence it belongs to.
        use_instead: &'static str,
    },
    /// The object is damaged. It is never read as "never seen".
    #[error(
        "the object `{resource}` is damaged: {why}; nothing was done. Stop all sections, move it away \
         or restore an earlier version, and `reset` the resource to the last token granted (`lockkeeper check-token`) before \
         anyone writes"
    )]
    Corrupt {
        /// The resource.
        resource: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The object is of a version that this program does not know.
    #[error(
        "the object `{resource}` has format {version}; this program reads format {VERSION}; nothing was done. Use the \
         newer program that wrote it"
    )]
    Newer {
        /// The resource.
        resource: String,
        /// Its format.
        version: u32,
    },
    /// More than fits beside the marks.
    #[error(
        "{bytes} bytes are too many for `{resource}`: the limit is {CONTENT_BYTES_MAX}, since every enter moves them \
         again. Use `PointerFence`, which has no limit"
    )]
    TooLarge {
        /// The resource.
        resource: String,
        /// How many there are.
        bytes: u64,
    },
    /// A draft that a sweep has given up.
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
    /// A draft that was never uploaded.
    #[error("there is no object `{draft}`; nothing was published. Upload the data to it before publishing")]
    DraftMissing {
        /// Where the data should be.
        draft: Path,
    },
    /// The data that a pointer names is gone, or not what was published.
    #[error(
        "the data of `{resource}` in `{data}` {why}: something other than the fence has changed it. Restore it, or write \
         the resource anew"
    )]
    DataLost {
        /// The resource.
        resource: String,
        /// The object that its pointer names.
        data: Path,
        /// What is wrong with it.
        why: String,
    },
    /// The store refused a step, or was not reached.
    #[error("cannot {doing} `{path}`{}", advice(source))]
    Store {
        /// The step, as a verb.
        doing: &'static str,
        /// On what.
        path: Path,
        /// What the store said.
        source: ::object_store::Error,
    },
    /// The system gave no random numbers, without which changes can't be told apart.
    #[error("the system gives no random numbers; nothing was done")]
    Random(#[source] getrandom::Error),
}

impl ObjectError {
    /// For `map_err`: what was being done, and on what.
    pub(super) fn store(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(::object_store::Error) -> Self + use<> {
        let path = path.clone();
        move |source| Self::Store { doing, path, source }
    }
}

/// What to do about the faults that users meet; the cause itself is the error's source.
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

/// What a store does that makes it unfit for a fence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// Local files.
    #[error(
        "it keeps plain files, and has no put that depends on what is there (If-Match); use `FileFence` for files"
    )]
    LocalFiles,
    /// A put with a condition is not supported at all.
    #[error(
        "it refused {what}: {answer}; a fence needs puts with If-None-Match and If-Match (for S3 see the store's setting \
         of conditional puts)"
    )]
    Unsupported {
        /// Which put.
        what: &'static str,
        /// What it said.
        answer: String,
    },
    /// A put whose condition did not hold was done.
    #[error(
        "it answered \"done\" to {what}, which it had to refuse: it ignores the condition, and one writer would overwrite \
         another unseen"
    )]
    Ignored {
        /// Which put.
        what: &'static str,
    },
    /// Of puts of which only one may be done, several were.
    #[error(
        "it answered \"done\" to {done} of {of} simultaneous puts with {what}, of which only one may be done: it checks the \
         condition and puts in two steps"
    )]
    NotAtomic {
        /// Their condition.
        what: &'static str,
        /// How many were done.
        done: usize,
        /// How many there were.
        of: usize,
    },
    /// No ETag.
    #[error("it gives no ETag with an object, and a put can't name what it is to replace")]
    NoETag,
    /// An ETag that stays when the content changes.
    #[error("it gave the ETag {etag} to two different contents, so a put can't name what it is to replace")]
    SameETag {
        /// The ETag.
        etag: String,
    },
    /// What is read is not what was put.
    #[error("it gave back another content than was put last: a read must see the latest put")]
    StaleRead,
}
