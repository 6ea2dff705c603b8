//! Translates the server's errors for users, and decides which of them pass by themselves.

use std::convert::Infallible;

use lockkeeper_backend::leased::StoreFailure;
use lockkeeper_backend::{BackendError, BackendErrorKind, CallError};
use mysql_async::{Error, ServerError};

/// Why a statement has no result.
pub(crate) type StatementFailure = StoreFailure<Infallible>;

/// The table that a statement names does not exist.
pub(crate) const NO_TABLE: u16 = 1146;

/// The kinds of the server's errors. Others are [`BackendErrorKind::Refused`].
const ERRORS: &[(BackendErrorKind, &[u16])] = &[
    (
        // These pass by themselves. The statement was rolled back.
        BackendErrorKind::Unreachable,
        &[
            // Lock wait, deadlock (also a failed certification of Galera), a row that has changed.
            1205, 1213, 1020, 3572, //
            // Read-only: a replica, or a primary that is being replaced.
            1290, 1792, 1836, //
            // Galera: the node is not part of the primary component.
            1047, //
            // Interrupted: by a limit of time, an operator, or the server's end.
            1053, 1317, 1927, 1969, 3024, 4031, //
        ],
    ),
    // No memory, no connection left.
    (BackendErrorKind::LimitReached, &[1037, 1038, 1040, 1041, 1203, 1226, 1390]),
    (BackendErrorKind::Denied, &[1044, 1045, 1142, 1143, 1227, 1370, 1698, 3118, 4151]),
    // Disks, damaged files, and tables that are not there.
    (BackendErrorKind::Operator, &[1021, 1026, 1030, 1034, 1114, 1146, 1194, 1195, 1235, 3185]),
];

/// Errors after which the connection is not used again: it leads to a server that can't write, or is about to
/// be closed.
const LEAVE: &[u16] = &[1047, 1053, 1290, 1792, 1836, 1927, 4031];

pub(crate) fn kind_of(code: u16) -> BackendErrorKind {
    let known = ERRORS.iter().find(|(_, codes)| codes.contains(&code));
    known.map_or(BackendErrorKind::Refused, |(kind, _)| *kind)
}

/// Whether the connection of a refused statement can be used again.
pub(crate) fn stays_usable(error: &ServerError) -> bool {
    !LEAVE.contains(&error.code)
}

/// The failure of a statement. `doing` is the operation, as in "list locks".
pub(crate) fn failed(error: &Error, doing: &str) -> StatementFailure {
    match error {
        Error::Server(error) => {
            let refusal = refused(error, doing);
            match refusal.kind {
                BackendErrorKind::Unreachable | BackendErrorKind::LimitReached => {
                    StatementFailure::Silent(CallError::refused(refusal))
                }
                _ => StatementFailure::Refused(refusal),
            }
        }
        error => {
            let what = format!("the connection ended ({}) while trying to {doing}", chain(error));
            let refusal = BackendError::new(BackendErrorKind::Unreachable, what);
            StatementFailure::Silent(CallError { sent: true, ..CallError::refused(refusal) })
        }
    }
}

/// The server's refusal of a statement.
pub(crate) fn refused(error: &ServerError, doing: &str) -> BackendError {
    BackendError::new(kind_of(error.code), format!("the server refuses to {doing}: {}", said(error)))
}

/// The error of an inspection or a break, which is not repeated.
pub(crate) fn explained(failure: StatementFailure, doing: &str) -> BackendError {
    match failure {
        StatementFailure::Refused(error) => error,
        StatementFailure::Silent(error) => error.refusal.map_or_else(
            || {
                let what = format!("no answer to the attempt to {doing}; check that the server is well");
                BackendError::new(BackendErrorKind::Unreachable, what)
            },
            |refusal| (*refusal).clone(),
        ),
    }
}

fn said(error: &ServerError) -> String {
    format!("{} (error {})", error.message, error.code)
}

/// The message of an error and of its sources.
pub(crate) fn chain(error: &Error) -> String {
    match error {
        Error::Server(error) => said(error),
        error => {
            let mut words = error.to_string();
            let mut below = std::error::Error::source(error);
            while let Some(error) = below {
                let said = error.to_string();
                if !words.contains(&said) {
                    words = format!("{words}: {said}");
                }
                below = error.source();
            }
            words
        }
    }
}
