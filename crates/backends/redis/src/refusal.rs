//! Meaning of Redis errors, and their texts for users: the error, and a remedy.

use std::fmt;
use std::time::Duration;

use lockkeeper_backend::{BackendError, BackendErrorKind};
use redis::{ErrorKind, RedisError, ServerError, Value};

use super::reply_limit::TooLong;
use super::target::Target;

/// What an error reply implies for the call, which was not executed.
pub(super) enum Meaning {
    /// A repeat may succeed soon.
    TryAgain(Refusal),
    /// The key, if it exists, is at this address of a cluster, where its slot moves to.
    Ask(String),
    /// This server is no longer the primary.
    ElsewhereNow(Refusal),
    Refused(Refusal),
}

/// A Redis error reply, formatted for users.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    kind: BackendErrorKind,
    text: String,
    /// The key is on another node of a cluster.
    pub(super) moved: bool,
}

impl Refusal {
    pub(super) fn into_error(self) -> BackendError {
        BackendError::new(self.kind, self.text)
    }
}

/// Pause between attempts of a call that the server refuses for a reason that passes soon.
pub(super) const PASSING_PAUSE: Duration = Duration::from_millis(50);

/// Maps the codes of Redis errors to a kind and a remedy. `Unreachable` is retried; an error that is not
/// listed needs an operator.
const ERRORS: &[(&str, BackendErrorKind, &str)] = &[
    ("BUSY", BackendErrorKind::Unreachable, "it is executing somebody's script"),
    ("CLUSTERDOWN", BackendErrorKind::Unreachable, "a part of the cluster has no primary"),
    ("LOADING", BackendErrorKind::Unreachable, "it is reading its data"),
    ("MASTERDOWN", BackendErrorKind::Unreachable, "it is a replica without its primary"),
    (
        "NOREPLICAS",
        BackendErrorKind::Unreachable,
        "fewer replicas follow it than `min-replicas-to-write` wants",
    ),
    ("READONLY", BackendErrorKind::Unreachable, "it is a replica: name the primary, or its sentinels"),
    (
        "TRYAGAIN",
        BackendErrorKind::Unreachable,
        "its slot of the cluster moves, and serves this again once that is done: if it was interrupted, by `redis-cli --cluster fix`",
    ),
    ("MOVED", BackendErrorKind::Operator, CLUSTER),
    // A slot that is migrating.
    ("ASK", BackendErrorKind::Operator, CLUSTER),
    (
        "WRONGTYPE",
        BackendErrorKind::Refused,
        "something else uses a key of this lock: choose another name or `?prefix=`",
    ),
    ("OOM", BackendErrorKind::Operator, "it is at its `maxmemory`: give it more, or fewer keys"),
    ("MISCONF", BackendErrorKind::Operator, "it can't save to its disk, and takes no writes until it can"),
    ("NOPERM", BackendErrorKind::Denied, PERMISSION),
    ("NOAUTH", BackendErrorKind::Denied, "it wants a login: write `redis://user:password@host`"),
];
const CLUSTER: &str = "another node of its cluster has the key: write `?cluster=true`, if the URL lacks it";

pub(super) fn of(error: &ServerError, server: &str) -> Meaning {
    let (code, details) = (error.code(), error.details().unwrap_or_default());
    // Before Redis 7 an error inside a script is wrapped in one of the script itself:
    // `ERR Error running script (…): … -READONLY …`.
    let wrapped =
        |wanted: &str| details.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == wanted);
    let is = |wanted: &str| code == wanted || code == "ERR" && wrapped(wanted);
    if code == "ASK"
        && let Some(address) = details.split(' ').nth(1)
    {
        return Meaning::Ask(address.to_owned());
    }
    let (known, kind, hint) = if lacks_permission(code, details) {
        ("NOPERM", BackendErrorKind::Denied, PERMISSION)
    } else {
        let known = ERRORS.iter().find(|(known, ..)| is(known)).copied();
        known.unwrap_or(("", BackendErrorKind::Operator, "look into the server's log"))
    };
    let text = format!("{server} refused: {code} {}; {hint}", details.trim_end());
    let refusal = Refusal { kind, text, moved: code == "MOVED" || code == "ASK" };
    match kind {
        BackendErrorKind::Unreachable if known == "READONLY" => Meaning::ElsewhereNow(refusal),
        BackendErrorKind::Unreachable => Meaning::TryAgain(refusal),
        _ => Meaning::Refused(refusal),
    }
}

/// Whether a failed attempt to connect may succeed soon: the server loads its data, or runs a script.
pub(super) fn is_passing(error: &RedisError) -> bool {
    // The client library replaces the code of an error in its own handshake.
    let wordings = ["busy running a script", "loading the dataset"];
    let passes =
        |code| ERRORS.iter().any(|(known, kind, _)| *known == code && *kind == BackendErrorKind::Unreachable);
    error.code().is_some_and(passes)
        || error.detail().is_some_and(|detail| wordings.iter().any(|wording| detail.contains(wording)))
}

/// Whether the error means that the server, or a proxy, does not support RESP3. Some proxies close the
/// connection after an unknown command.
pub(super) fn is_of_protocol(error: &RedisError) -> bool {
    let is_hello = |detail: &str| {
        let detail = detail.to_ascii_lowercase();
        detail.contains("hello") || UNKNOWN_COMMAND.iter().any(|unknown| detail.contains(unknown))
    };
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.code() == Some("ERR") && error.detail().is_some_and(is_hello)
        || error.is_connection_dropped()
}

/// Error texts for an unknown command, in lower case.
const UNKNOWN_COMMAND: [&str; 2] = ["unknown command", "unsupported command"];

/// The error if the server runs no scripts. `None` for other errors: they are temporary, or come from a proxy
/// that requires a key.
pub(super) fn of_first_script(error: &ServerError, target: &Target) -> Option<BackendError> {
    let (code, details) = (error.code(), error.details().unwrap_or_default());
    let lower = details.to_ascii_lowercase();
    let (kind, hint) = if lacks_permission(code, details) {
        (BackendErrorKind::Denied, PERMISSION)
    } else if UNKNOWN_COMMAND.iter().any(|unknown| lower.contains(unknown)) {
        (
            BackendErrorKind::Unsupported,
            "locks need scripts: allow `EVAL` and `EVALSHA`, or use another server",
        )
    } else {
        return None;
    };
    Some(BackendError::new(kind, format!("{target} can't be used: {code} {details}; {hint}")))
}

/// The server is a replica: it can't grant, and may not have every lock of its primary.
pub(super) fn replica(server: &str) -> BackendError {
    let what = format!(
        "{server} is a replica, and may lack locks: name its primary, or its sentinels (`?sentinel=NAME`)"
    );
    BackendError::new(BackendErrorKind::Unreachable, what)
}

/// The error for a failed attempt to connect.
pub(super) fn of_connecting(error: &RedisError, target: &Target) -> BackendError {
    let (code, details) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    let (kind, hint) = match error.kind() {
        _ if ["WRONGPASS", "NOAUTH"].contains(&code) => (BackendErrorKind::Denied, LOGIN),
        _ if lacks_permission(code, details) => (BackendErrorKind::Denied, PERMISSION),
        _ if details.contains("max number of clients") => (BackendErrorKind::LimitReached, CLIENTS),
        ErrorKind::AuthenticationFailed => (BackendErrorKind::Denied, LOGIN),
        ErrorKind::RESP3NotSupported => {
            (BackendErrorKind::Unsupported, "Redis 6 or later, or Valkey, is needed (RESP3)")
        }
        ErrorKind::Server(_) | ErrorKind::Extension => {
            (BackendErrorKind::Operator, "look into the server's log")
        }
        _ if unreadable(error).is_some() => (BackendErrorKind::Refused, not_redis(target)),
        _ if error.is_connection_refusal() => {
            (BackendErrorKind::Unreachable, "is it running, and is the port right?")
        }
        _ => (BackendErrorKind::Unreachable, not_redis(target)),
    };
    let what = unreadable(error).unwrap_or_else(|| error.to_string());
    BackendError::caused(kind, format!("{target} can't be used: {what}; {hint}"), error.clone())
}

/// The error for an unreadable reply, after which the connection is closed.
pub(super) fn of_reply(error: &RedisError, server: &dyn fmt::Display) -> Option<BackendError> {
    let what = format!("{server} can't be used: {}; is it a Redis server?", unreadable(error)?);
    Some(BackendError::caused(BackendErrorKind::Operator, what, error.clone()))
}

/// How much of an unexpected reply is shown, in characters.
const REPLY_SHOWN: usize = 100;

/// The error for a reply that the command, or the script of `EVALSHA`, never gives.
pub(super) fn unexpected(server: &dyn fmt::Display, command: &str, reply: &Value) -> BackendError {
    let shown: String = format!("{reply:?}").chars().take(REPLY_SHOWN).collect();
    let what =
        format!("{server} replied `{shown}` to {command}, which is no reply to that; is it a Redis server?");
    BackendError::new(BackendErrorKind::Operator, what)
}

/// The error of a reply that is too long or not in the protocol of Redis.
fn unreadable(error: &RedisError) -> Option<String> {
    match TooLong::of(error) {
        Some(too_long) => Some(too_long.to_string()),
        None => (error.kind() == ErrorKind::Parse).then(|| "it sent what is no reply of Redis".to_owned()),
    }
}

const CLIENTS: &str = "it has too many clients: raise its `maxclients`, or end some";
const LOGIN: &str = "check user and password: `redis://user:password@host`";
const PERMISSION: &str = "its user lacks a permission: docs/backends/redis.md lists what is needed";

/// Whether the user lacks a permission. The error text differs between versions of Redis, and between scripts
/// and plain commands.
fn lacks_permission(code: &str, details: &str) -> bool {
    let words = ["ACL failure", "can't run this command", "can't access", "no permissions to access"];
    code == "NOPERM" || words.iter().any(|words| details.contains(words))
}

/// A remedy for a server that gave no Redis error.
fn not_redis(target: &Target) -> &'static str {
    if target.settings().has_tls() {
        "does it speak TLS on this port, and is its certificate trusted (`?tls-ca=`)? if it asks for one of yours: \
         `?tls-cert=` and `tls-key=`"
    } else {
        "is it a Redis server, and does it want TLS (`rediss://`)?"
    }
}

/// Neither a reply nor an error arrived.
pub(super) fn connecting_took_too_long(target: &Target, limit: Duration) -> BackendError {
    let text = format!("{target} did not answer within {limit:?}; {}", not_redis(target));
    BackendError::new(BackendErrorKind::Unreachable, text)
}

/// The main connection has ended, and there is no other one yet.
pub(super) fn lost(target: &Target) -> BackendError {
    BackendError::new(BackendErrorKind::Unreachable, format!("the connection to {target} is lost"))
}

/// The thread that connects has ended.
pub(super) fn no_thread() -> BackendError {
    BackendError::new(BackendErrorKind::Operator, "the thread that keeps the connection to Redis has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error in a raw reply of Redis.
    fn error(answer: &str) -> ServerError {
        match redis::parse_redis_value(answer.as_bytes()).unwrap() {
            Value::ServerError(error) => error,
            other => panic!("no error: {other:?}"),
        }
    }

    /// Replies of Redis 5 to 6.2 and of Redis 7, to a script of this library and to a plain command.
    #[test]
    fn a_server_that_became_a_replica_is_left_by_any_version_of_its_error() {
        for answer in [
            "-ERR Error running script (call to f_9d3f7c1b0e4a86d25c1fbb7a40e3d8c6f1a2b3c4): @user_script:24: \
             @user_script: 24: -READONLY You can't write against a read only replica.  \r\n",
            "-ERR Error running script (call to f_9d3f7c1b0e4a86d25c1fbb7a40e3d8c6f1a2b3c4): @user_script:24: \
             @user_script: 24: -READONLY You can't write against a read only slave.  \r\n",
            "-READONLY You can't write against a read only replica. script: \
             9d3f7c1b0e4a86d25c1fbb7a40e3d8c6f1a2b3c4, on @user_script:24.\r\n",
            "-READONLY You can't write against a read only replica.\r\n",
        ] {
            assert!(matches!(of(&error(answer), "db1"), Meaning::ElsewhereNow(_)), "{answer}");
        }
    }

    #[test]
    fn transient_errors_are_repeated_by_any_version_of_their_text() {
        for answer in [
            "-ERR Error running script (call to f_9d3f7c1b0e4a86d25c1fbb7a40e3d8c6f1a2b3c4): @user_script:24: \
             @user_script: 24: -NOREPLICAS Not enough good replicas to write.  \r\n",
            "-NOREPLICAS Not enough good replicas to write.\r\n",
            "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
            "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
        ] {
            assert!(matches!(of(&error(answer), "db1"), Meaning::TryAgain(_)), "{answer}");
        }
    }

    #[test]
    fn other_errors_inside_a_script_are_refusals_with_a_remedy() {
        for (answer, hint) in [
            (
                "-ERR Error running script (call to f_9d3f7c1b0e4a86d25c1fbb7a40e3d8c6f1a2b3c4): @user_script:24: \
                 @user_script: 24: -OOM command not allowed when used memory > 'maxmemory'.  \r\n",
                "`maxmemory`",
            ),
            (
                "-ERR Error running script (call to f_9d3f7c1b0e4a86d25c1fbb7a40e3d8c6f1a2b3c4): @user_script:24: \
                 WRONGTYPE Operation against a key holding the wrong kind of value \r\n",
                "something else uses a key",
            ),
            ("-ERR the lock is BUSYBODY's and READONLYISH\r\n", "server's log"),
        ] {
            let Meaning::Refused(refusal) = of(&error(answer), "db1") else { panic!("{answer}") };
            assert!(refusal.text.contains(hint), "{}", refusal.text);
        }
    }
}
