//! What can go wrong at a Redis fence, and whose move is next.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::resource::BadResource;
use crate::rule::Refused;

/// Why a call at a Redis fence did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisFenceError {
    /// The rule said no; nothing was done.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No resource has such a name; nothing was sent.
    #[error(transparent)]
    Resource(#[from] BadResource),
    /// The server may throw keys away, the marks too: a fence that has forgotten lets every token in.
    #[error(
        "this Redis can't keep a fence: its `maxmemory-policy` is `{policy}`, which throws keys away when memory is \
         short, and a mark that is gone lets every token in. Set `maxmemory-policy noeviction`"
    )]
    Evicts {
        /// What it is set to.
        policy: String,
    },
    /// The server does not tell whether it may throw keys away.
    #[error(
        "this Redis does not tell its `maxmemory-policy` ({why}), so its marks may be thrown away. Allow `INFO` to \
         this user; or, if you know that the policy is `noeviction`, connect by `RedisFence::trusting_no_eviction`"
    )]
    EvictionUnknown {
        /// What it said instead.
        why: String,
    },
    /// A replica lags behind: its marks say less than the primary's. Nothing was done.
    #[error("this Redis is a replica, whose marks may be old; nothing was done. Connect to the primary")]
    Replica,
    /// In a cluster, a key that is not where the marks are; nothing was sent.
    #[error(
        "key `{key}` is in slot {slot} of the cluster, and the marks of `{resource}` are in slot {marks_slot}: check and \
         write would not be one step; nothing was done. Give the key the same hash tag: put `{{{tag}}}` into its name"
    )]
    CrossSlot {
        /// The resource.
        resource: String,
        /// The key that is elsewhere.
        key: String,
        /// Where it is.
        slot: u16,
        /// Where the marks are.
        marks_slot: u16,
        /// What brings a key there.
        tag: String,
    },
    /// A command that can't be part of a fenced write; nothing was sent.
    #[error("`{command}` can't be part of a fenced write: {why}")]
    Command {
        /// Its name.
        command: String,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// One of the caller's commands failed. The section has passed and its marks are raised.
    #[error(
        "command {} of {of}, `{command}`, failed: {message}. The {done} before it took effect and stay so, it and those \
         after it did not. The token has passed: mend the command and `write` again with the same one",
        done + 1
    )]
    Failed {
        /// How many commands took effect before it.
        done: usize,
        /// How many there were.
        of: usize,
        /// The name of the one that failed.
        command: String,
        /// What Redis said.
        message: String,
    },
    /// The caller's own script failed. The section has passed and its marks are raised.
    #[error(
        "the script failed: {message}. What it did before stays done. The token has passed: mend the script and write \
         again with the same one"
    )]
    Script {
        /// What Redis said.
        message: String,
    },
    /// Something else has the key of the marks; nothing was done.
    #[error(
        "key `{key}` should be the hash of the marks, and is something else; nothing was done. Find out what writes it \
         (`TYPE`), and rename that key"
    )]
    WrongType {
        /// The key.
        key: String,
    },
    /// A mark is no token. It is never read as "never seen".
    #[error(
        "the marks in `{key}` are damaged: field `{field}` is `{value}`; nothing was done. Stop all writers, find the \
         last token granted, and set the marks to it (`reset`)"
    )]
    Damaged {
        /// The key.
        key: String,
        /// The field of the hash.
        field: String,
        /// What is in it.
        value: String,
    },
    /// The server said no; nothing was done.
    #[error("Redis refused: {source}; nothing was done{}", advice(source))]
    Server {
        /// What it said.
        source: RedisError,
    },
    /// No answer, or none that can be read: it may have been done, or may be done later (P12).
    #[error(
        "no answer from Redis: {source}. Whether it was done is unknown. Repeating `enter` with the same token is safe. \
         A `write` may still take effect, also after later writes with the same token: repeat it only if its commands \
         may be done twice and nothing is written after it, or acquire again and enter with the new token, which shuts \
         it out. `check_once` would answer that the token was here, \
         whether or not the first try was what brought it"
    )]
    Unknown {
        /// What came instead.
        source: RedisError,
    },
}

impl RedisFenceError {
    /// What an error of the call on the marks in `key` means.
    pub(super) fn of_call(error: RedisError, key: &str) -> Self {
        let said =
            |word: &str| error.code() == Some(word) || error.detail().is_some_and(|text| text.contains(word));
        match error.kind() {
            // Errors inside of a script were wrapped before Redis 7.
            ErrorKind::Server(_) | ErrorKind::Extension if said("WRONGTYPE") => {
                Self::WrongType { key: key.to_owned() }
            }
            ErrorKind::Server(_) | ErrorKind::Extension if said("READONLY") => Self::Replica,
            ErrorKind::Server(_) | ErrorKind::Extension => Self::Server { source: error },
            _ => Self::Unknown { source: error },
        }
    }

    /// An answer that no script of ours gives.
    pub(super) fn unreadable(what: &'static str) -> Self {
        Self::Unknown { source: RedisError::from((ErrorKind::Parse, what)) }
    }
}

/// What to do about the errors that users meet.
fn advice(source: &RedisError) -> &'static str {
    let said =
        |word: &str| source.code() == Some(word) || source.detail().is_some_and(|text| text.contains(word));
    if said("OOM") {
        ". It is at its `maxmemory`: give it more, or fewer keys"
    } else if said("MISCONF") {
        ". It can't save to its disk, and takes no writes until it can"
    } else if said("NOREPLICAS") {
        ". It has fewer replicas than `min-replicas-to-write` asks for"
    } else if source.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || said("ACL failure")
        || said("run this command")
    {
        ". Its user needs EVAL, EVALSHA, HGETALL, HMGET, HKEYS, HSET and HDEL, INFO, the commands of the write, and the keys \
         `*:lockkeeper:fence` and `*:lockkeeper:tagged:fence`"
    } else if source.is_cluster_error() {
        ". It is a node of a cluster: use a connection for clusters"
    } else {
        ""
    }
}
