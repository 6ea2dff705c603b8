//! Translates errors of statements and of connection attempts for users. Errors of connection attempts name
//! the host and, where there is one, the remedy.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use lockkeeper_backend::{BackendError, BackendErrorKind};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, SimpleQueryMessage, SimpleQueryRow};

use super::settings::{Server, Settings, TlsMode};

/// Why a statement has no result.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The server refused it; the connection stays usable.
    Refused(Error),
    /// The connection ended. The statement may have been executed.
    Ended(String),
    /// No answer within this time. The statement may have been executed, or may still be running.
    Silent(Duration),
}

impl NoAnswer {
    /// The error as shown to users. `doing` is the operation, as an infinitive without "to": "look at a
    /// lock".
    pub(super) fn explained(self, doing: &str) -> BackendError {
        match self {
            Self::Refused(error) => refused(&error, doing),
            Self::Ended(why) => BackendError::new(
                BackendErrorKind::Unreachable,
                format!("the connection ended ({why}) while trying to {doing}"),
            ),
            Self::Silent(limit) => BackendError::new(
                BackendErrorKind::Unreachable,
                format!("the server did not answer within {limit:?} when asked to {doing}"),
            ),
        }
    }

    /// The SQLSTATE of the refusal.
    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Refused(error) => error.code(),
            _ => None,
        }
    }
}

/// The rows of all statements in a simple-query message.
pub(super) fn rows(answer: Vec<SimpleQueryMessage>) -> Vec<SimpleQueryRow> {
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    answer.into_iter().filter_map(row).collect()
}

/// Classifies the result of a statement.
///
/// # Errors
/// [`NoAnswer`].
pub(super) fn answered_by<T>(answer: Result<T, Error>) -> Result<T, NoAnswer> {
    match answer {
        Ok(answer) => Ok(answer),
        // A FATAL error ends the connection: the statement in flight receives it, but was not refused by it.
        Err(error) if error.as_db_error().is_some() && !ends_the_connection(&error) => {
            Err(NoAnswer::Refused(error))
        }
        Err(error) => Err(NoAnswer::Ended(chain(&error))),
    }
}

/// Whether the server ends the connection with this error.
fn ends_the_connection(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| matches!(error.severity(), "FATAL" | "PANIC"))
}

/// Maps prefixes of SQLSTATEs to kinds of errors; the first match counts. `Unreachable` and `LimitReached`
/// are retried. An error that is not listed is the request's fault (`Refused`).
const ERRORS: &[(&str, BackendErrorKind)] = &[
    ("08", BackendErrorKind::Unreachable),
    // A standby, or a server that may write later.
    ("25006", BackendErrorKind::Unreachable),
    ("28", BackendErrorKind::Denied),
    // Conflicts.
    ("40", BackendErrorKind::Unreachable),
    ("42501", BackendErrorKind::Denied),
    // The schema is missing.
    ("3F000", BackendErrorKind::Operator),
    ("42883", BackendErrorKind::Operator),
    ("42P01", BackendErrorKind::Operator),
    // A full disk, and too few of any other resource.
    ("53100", BackendErrorKind::Operator),
    ("53", BackendErrorKind::LimitReached),
    // A locked row.
    ("55P03", BackendErrorKind::Unreachable),
    // The operator's interventions: a restart, a cancelled statement.
    ("57", BackendErrorKind::Unreachable),
    // I/O errors of the server, and bugs in it.
    ("58", BackendErrorKind::Operator),
    ("XX", BackendErrorKind::Operator),
];

/// The kind of a server error, by [`ERRORS`].
pub(super) fn kind_of(code: Option<&SqlState>) -> BackendErrorKind {
    let known = ERRORS.iter().find(|(begin, _)| code.is_some_and(|code| code.code().starts_with(begin)));
    known.map_or(BackendErrorKind::Refused, |(_, kind)| *kind)
}

/// Formats the refusal of a statement for users.
fn refused(error: &Error, doing: &str) -> BackendError {
    let privilege = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    let kind = kind_of(error.code());
    let instead =
        if privilege { "; `lockkeeper postgres init URL --role NAME` grants what is needed" } else { "" };
    BackendError::new(kind, format!("the server refuses to {doing}: {}{instead}", chain(error)))
}

/// For a server's error, its message and SQLSTATE; otherwise the messages of the error and of all its
/// sources.
pub(super) fn chain(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", error.message(), error.code().code());
    }
    let mut words = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        words = format!("{words}: {error}");
        below = error.source();
    }
    words
}

/// Formats a failed connection attempt for users, with the remedy.
pub(super) fn explain(error: &Error, server: &Server, settings: &Settings) -> BackendError {
    let at = &server.shown;
    if is_read_only(error) {
        let what = format!(
            "the server at {at} is read-only (a standby, or default_transaction_read_only): its locks would exclude \
             nobody; name the primary"
        );
        return BackendError::new(BackendErrorKind::Unreachable, what);
    }
    let (kind, what) = refusal(error, at, settings);
    BackendError::new(kind, what)
}

/// Whether `TargetSessionAttrs::ReadWrite` rejected the server. That error has no SQLSTATE.
fn is_read_only(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.to_string() == "database does not allow writes")
}

fn no_tls(at: &str, said: &str, settings: &Settings) -> String {
    let verify = matches!(settings.tls, TlsMode::VerifyCa | TlsMode::VerifyFull);
    let hint = if verify { "; `tls-ca=FILE` names whom to trust" } else { "" };
    format!("no TLS with the server at {at}: {said}{hint}")
}

/// Kind and message for a failed connection attempt, except to a read-only server.
fn refusal(error: &Error, at: &str, settings: &Settings) -> (BackendErrorKind, String) {
    use BackendErrorKind::{Denied, LimitReached, Refused, Unreachable};
    let said = chain(error);
    let (user, database) = (settings.user(), settings.database());
    match error.code().cloned() {
        Some(SqlState::INVALID_PASSWORD) => (
            Denied,
            format!("the server at {at} refuses the password of the user {user}: check both in the address"),
        ),
        Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
            let wants_tls = said.contains("no encryption") || said.contains("SSL off");
            let tls = if wants_tls { ", or asks for TLS: add `sslmode=require`" } else { "" };
            (
                Denied,
                format!(
                    "the server at {at} does not let the user {user} into the database {database}: {said}; its \
                     pg_hba.conf has no line for it{tls}"
                ),
            )
        }
        Some(SqlState::INVALID_CATALOG_NAME) => (
            Refused,
            format!(
                "the server at {at} has no database {database}: create it, or name another in the address"
            ),
        ),
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => (
            Denied,
            format!("the user {user} may not use the database {database} at {at}: {said}; grant it CONNECT"),
        ),
        Some(SqlState::TOO_MANY_CONNECTIONS) => (
            LimitReached,
            format!(
                "the server at {at} has no connection left: {said}; raise its max_connections, or lower \
                 `connections=` in the addresses of its clients"
            ),
        ),
        Some(_) => (Unreachable, format!("the server at {at} refuses connections: {said}")),
        None if error.to_string().contains("TLS") && said.contains("does not support TLS") => (
            Refused,
            format!(
                "the address asks for TLS, but the server at {at} offers none: set `ssl = on` there, or say \
                 `sslmode=disable` where the way is safe"
            ),
        ),
        None if error.to_string().contains("TLS") => (Refused, no_tls(at, &said, settings)),
        None if said.contains("password missing") => (
            Denied,
            format!("the server at {at} wants a password for the user {user}: `postgres://user:password@…`"),
        ),
        None => (
            Unreachable,
            format!(
                "no PostgreSQL server answers at {at}: {said}; check host and port, and that it is running"
            ),
        ),
    }
}
