//! Errors of the Redis fence.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::resource::BadResource;
use crate::rule::Refused;

/// Why a call at a Redis fence failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisFenceError {
    /// The rule refused the section; nothing was done.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The text is not a valid resource name; nothing was sent.
    #[error(transparent)]
    Resource(#[from] BadResource),
    /// The server may evict keys. If it evicts the marks, a resource accepts any token.
    #[error(
        "this Redis can't keep a fence: its `maxmemory-policy` is `{policy}`, which throws keys away when memory is \
         short, and a mark that is gone lets every token in. Set `maxmemory-policy noeviction`"
    )]
    Evicts {
        /// The server's policy.
        policy: String,
    },
    /// The server does not report its eviction policy.
    #[error(
        "this Redis does not tell its `maxmemory-policy` ({why}), so its marks may be thrown away. Allow `INFO` to \
         this user; or, if you know that the policy is `noeviction`, connect by `RedisFence::trusting_no_eviction`"
    )]
    EvictionUnknown {
        /// The server's reply.
        why: String,
    },
    /// The server is a replica, which lags: its marks may be older than the primary's. Nothing was done.
    #[error("this Redis is a replica, whose marks may be old; nothing was done. Connect to the primary")]
    Replica,
    /// In a cluster, a key is in another slot than the marks; nothing was sent.
    #[error(
        "key `{key}` is in slot {slot} of the cluster, and the marks of `{resource}` are in slot {marks_slot}: check and \
         write would not be one step; nothing was done. Give the key the same hash tag: put `{{{tag}}}` into its name"
    )]
    CrossSlot {
        /// The resource.
        resource: String,
        /// The key in another slot.
        key: String,
        /// The slot of that key.
        slot: u16,
        /// The slot of the marks.
        marks_slot: u16,
        /// The hash tag that places a key in the slot of the marks.
        tag: String,
    },
    /// A command that is not allowed in a fenced write; nothing was sent.
    #[error("`{command}` can't be part of a fenced write: {why}")]
    Command {
        /// The command's name.
        command: String,
        /// The reason, and the remedy.
        why: &'static str,
    },
    /// One of the caller's commands failed. The section has passed and its marks are raised.
    #[error(
        "command {} of {of}, `{command}`, failed: {message}. The {done} before it took effect and stay so, it and those \
         after it did not. The token has passed: mend the command and `write` again with the same one",
        done + 1
    )]
    Failed {
        /// Number of commands that took effect before the failed one.
        done: usize,
        /// Number of commands in the write.
        of: usize,
        /// The name of the failed command.
        command: String,
        /// The error reply.
        message: String,
    },
    /// The caller's own script failed. The section has passed and its marks are raised.
    #[error(
        "the script failed: {message}. What it did before stays done. The token has passed: mend the script and write \
         again with the same one"
    )]
    Script {
        /// The error reply.
        message: String,
    },
    /// The key of the marks has another type than a hash; nothing was done.
    #[error(
        "key `{key}` should be the hash of the marks, and is something else; nothing was done. Find out what writes it \
         (`TYPE`), and rename that key"
    )]
    WrongType {
        /// The key.
        key: String,
    },
    /// A mark is not a valid token. The resource is never treated as "never seen".
    #[error(
        "the marks in `{key}` are damaged: field `{field}` is `{value}`; nothing was done. Stop all writers, find the \
         last token granted, and set the marks to it (`reset`)"
    )]
    Damaged {
        /// The key.
        key: String,
        /// The field of the hash.
        field: String,
        /// The field's value.
        value: String,
    },
    /// The server returned an error; nothing was done.
    #[error("Redis refused: {source}; nothing was done{}", advice(source))]
    Server {
        /// The error reply.
        source: RedisError,
    },
    /// No response, or an unreadable one: the call may have taken effect, or may do so later (P12).
    #[error(
        "no answer from Redis: {source}. Whether it was done is unknown. Repeating `enter` with the same token is safe. \
         A `write` may still take effect, also after later writes with the same token: repeat it only if its commands \
         may be done twice and nothing is written after it, or acquire again and enter with the new token, which shuts \
         it out. `check_once` would answer that the token was here, \
         whether or not the first try was what brought it"
    )]
    Unknown {
        /// The error of the connection, or of reading the reply.
        source: RedisError,
    },
}

impl RedisFenceError {
    /// Classifies the error of a call on the marks in `key`.
    pub(super) fn of_call(error: RedisError, key: &str) -> Self {
        let mentions =
            |word: &str| error.code() == Some(word) || error.detail().is_some_and(|text| text.contains(word));
        match error.kind() {
            // Redis before version 7 returns an error inside a script as text within a general error of the
            // script.
            ErrorKind::Server(_) | ErrorKind::Extension if mentions("WRONGTYPE") => {
                Self::WrongType { key: key.to_owned() }
            }
            ErrorKind::Server(_) | ErrorKind::Extension if mentions("READONLY") => Self::Replica,
            ErrorKind::Server(_) | ErrorKind::Extension => Self::Server { source: error },
            _ => Self::Unknown { source: error },
        }
    }

    /// The error for a reply that none of the fence's scripts returns.
    pub(super) fn unreadable(what: &'static str) -> Self {
        Self::Unknown { source: RedisError::from((ErrorKind::Parse, what)) }
    }
}

/// Advice on common errors.
fn advice(source: &RedisError) -> &'static str {
    let mentions =
        |word: &str| source.code() == Some(word) || source.detail().is_some_and(|text| text.contains(word));
    if mentions("OOM") {
        ". It is at its `maxmemory`: give it more, or fewer keys"
    } else if mentions("MISCONF") {
        ". It can't save to its disk, and takes no writes until it can"
    } else if mentions("NOREPLICAS") {
        ". It has fewer replicas than `min-replicas-to-write` asks for"
    } else if source.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || mentions("ACL failure")
        || mentions("run this command")
    {
        ". Its user needs EVAL, EVALSHA, HGETALL, HMGET, HKEYS, HSET and HDEL, INFO, the commands of the write, and the keys \
         `*:lockkeeper:fence` and `*:lockkeeper:tagged:fence`"
    } else if source.is_cluster_error() {
        ". It is a node of a cluster: use a connection for clusters"
    } else {
        ""
    }
}
