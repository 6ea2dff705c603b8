//! Errors of the Postgres fence.

use lockkeeper_core::{ModeKind, Token};

use super::SCHEMA_VERSION;
use crate::resource::BadResource;
use crate::rule::{Action, Refused};

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

/// The parts of a client library's error that this module needs.
pub(super) struct Reported<'a> {
    pub(super) sqlstate: Option<&'a str>,
    pub(super) message: &'a str,
    pub(super) detail: Option<&'a str>,
}

impl Reported<'_> {
    /// The refusal, if the fence's functions raised one. `action` is the requested action, which the server's
    /// error does not contain.
    pub(super) fn refused(&self, action: Action) -> Option<Refused> {
        match self.sqlstate? {
            "LK001" => {
                let (offered, highest) = self.tokens()?;
                Some(Refused::Stale { offered, highest })
            }
            "LK002" => Some(Refused::Repeated { token: self.tokens()?.0 }),
            "LK003" => Some(Refused::SharedWrite { action }),
            _ => None,
        }
    }

    /// Parses `offered=5 highest=7`.
    fn tokens(&self) -> Option<(Token, Token)> {
        let (offered, highest) = self.detail?.strip_prefix("offered=")?.split_once(" highest=")?;
        Some((Token::new(offered.parse().ok()?)?, Token::new(highest.parse().ok()?)?))
    }

    /// Classifies the error by its SQLSTATE.
    pub(super) fn verdict(&self, action: Action) -> PostgresErrorKind {
        if let Some(refused) = self.refused(action) {
            return PostgresErrorKind::Refused(refused);
        }
        match self.sqlstate {
            Some("40001" | "40P01") => PostgresErrorKind::TryAgain,
            // A schema or function is missing, or the role lacks rights. The message shows whether this
            // concerns the fence or the caller's own objects.
            Some("3F000" | "42883" | "42501") if names_the_fence(self.message) => {
                PostgresErrorKind::NotInstalled
            }
            Some("25006") => PostgresErrorKind::Replica,
            Some("LK005") => PostgresErrorKind::NoToken { message: self.message.to_owned() },
            _ => PostgresErrorKind::Other,
        }
    }
}

/// Whether the message concerns the fence. For a function without EXECUTE it contains only the unqualified
/// function name.
fn names_the_fence(message: &str) -> bool {
    message.contains("lockkeeper_fence")
        || ["enter", "check_write", "check_once", "read_marks", "version", "reset_marks"]
            .into_iter()
            .any(|name| message.ends_with(&format!(" {name}")))
}

/// [`PostgresError`] without its source: the caller adds the library error that it owns.
pub(super) enum PostgresErrorKind {
    Refused(Refused),
    TryAgain,
    NotInstalled,
    Replica,
    NoToken { message: String },
    Other,
}

impl PostgresErrorKind {
    pub(super) fn of(
        self,
        doing: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> PostgresError {
        match self {
            Self::Refused(refused) => refused.into(),
            Self::TryAgain => PostgresError::TryAgain(source),
            Self::NotInstalled => PostgresError::NotInstalled(source),
            Self::Replica => PostgresError::Replica,
            Self::NoToken { message } => PostgresError::NoToken { message },
            Self::Other => PostgresError::Database { doing, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported<'a>(sqlstate: &'a str, detail: Option<&'a str>) -> Reported<'a> {
        Reported { sqlstate: Some(sqlstate), message: "", detail }
    }

    #[test]
    fn refusals_are_decoded_and_other_errors_are_not() {
        let [five, seven] = [5, 7].map(|value| Token::new(value).expect("a token"));
        let both = Some("offered=5 highest=7");
        let stale = Refused::Stale { offered: five, highest: seven };
        assert_eq!(reported("LK001", both).refused(Action::Write), Some(stale));
        let equal = Some("offered=5 highest=5");
        assert_eq!(
            reported("LK002", equal).refused(Action::CheckOnce),
            Some(Refused::Repeated { token: five })
        );
        for detail in
            [None, Some(""), Some("offered=5"), Some("offered=0 highest=7"), Some("offered=x highest=7")]
        {
            assert_eq!(reported("LK001", detail).refused(Action::Write), None, "{detail:?}");
        }
        assert_eq!(reported("23505", both).refused(Action::Write), None);
    }
}
