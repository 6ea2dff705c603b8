//! Errors of the Postgres fence.

use lockkeeper_core::{ModeKind, Token};

use super::SCHEMA_VERSION;
use crate::resource::BadResource;
use crate::rule::Refused;

/// Why a call at a Postgres fence failed.
///
/// After any of these errors, roll back the transaction in which it happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The rule refused the section. Roll back; then the transaction has no effect.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The text is not a valid resource name.
    #[error(transparent)]
    Resource(#[from] BadResource),
    /// A conflict with another transaction: at REPEATABLE READ and SERIALIZABLE a change that this
    /// transaction's snapshot does not include (40001), or a deadlock (40P01). No decision was made.
    #[error(
        "another transaction was in the way; nothing was done: roll back and run the whole transaction again"
    )]
    TryAgain(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The fence is not installed in this database, or the role has no rights to it.
    #[error(
        "this database has no schema lockkeeper_fence, or this role may not use it; apply \
         `lockkeeper_fence::postgres::SCHEMA_SQL` as the owner, and `grants_sql` for this role"
    )]
    NotInstalled(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The fence in the database has another version.
    #[error(
        "the schema lockkeeper_fence in this database has version {found}; this program knows {SCHEMA_VERSION}: apply \
         the SCHEMA_SQL of the newer of the two"
    )]
    OtherVersion {
        /// The database's version.
        found: i32,
    },
    /// The server is a replica, or the transaction is READ ONLY.
    #[error(
        "the server is a replica, or the transaction is READ ONLY, so it can keep no mark; connect to the primary, and \
         begin READ WRITE"
    )]
    Replica,
    /// A row of the marks has values that the fence's functions never write.
    #[error(
        "the marks of `{resource}` are damaged: slot {slot} has any_token {any}, writer_token {writer}; somebody wrote \
         lockkeeper_fence.marks by hand. Stop all writers, find the last token granted (`lockkeeper check-token`), and \
         call lockkeeper_fence.reset_marks with it"
    )]
    MarksCorrupt {
        /// The resource.
        resource: String,
        /// The row's slot.
        slot: i32,
        /// The row's `any_token`.
        any: i64,
        /// The row's `writer_token`.
        writer: i64,
    },
    /// A guarded table was written without a token.
    #[error("{message}; SET LOCAL lockkeeper.token = '…' in the transaction before it writes")]
    NoToken {
        /// The server's message, with the table.
        message: String,
    },
    /// A table with a fence column has no row with this key.
    #[error(
        "there is no row of {table} with this {key}; nothing was done: insert it, with its fence column at 0"
    )]
    RowAbsent {
        /// The table, quoted as in SQL.
        table: String,
        /// The table's key column, quoted.
        key: String,
    },
    /// A fence column is NULL.
    #[error(
        "{column} of this row of {table} is NULL, which no token can be compared with; nothing was done: make the column \
         `bigint NOT NULL DEFAULT 0`"
    )]
    ColumnNull {
        /// The table, quoted as in SQL.
        table: String,
        /// The table's fence column, quoted.
        column: String,
    },
    /// The value in a fence column is not a token.
    #[error(
        "{column} of this row of {table} is {value}, which is no token (1 to 2^53 - 1, or 0 for none); nothing was done"
    )]
    ColumnOutOfRange {
        /// The table, quoted as in SQL.
        table: String,
        /// The table's fence column, quoted.
        column: String,
        /// The column's value.
        value: i64,
    },
    /// An `UPDATE` matched no row although the mark is not above the token: the row was inserted after the
    /// `UPDATE`, or the statement has further conditions.
    #[error(
        "the update of {table} found no row, but token {token} is not stale (the mark is {mark}): the statement has further \
         conditions, or the row was inserted meanwhile; nothing was done"
    )]
    NoRowMatched {
        /// The table, quoted as in SQL.
        table: String,
        /// The section's token.
        token: Token,
        /// The row's mark.
        mark: i64,
    },
    /// A fence column has one mark, which can't distinguish readers and slots.
    #[error(
        "a fence column keeps one mark, so only exclusive holds can use it, not mode {mode}; use the functions of the \
         schema lockkeeper_fence for shared holds and slots"
    )]
    ExclusiveOnly {
        /// The section's mode.
        mode: ModeKind,
    },
    /// The database returned an error, or the connection failed.
    #[error("the database did not carry out {doing}")]
    Database {
        /// The operation.
        doing: &'static str,
        /// The client library's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
