//! A fence in PostgreSQL: the check is the first statement of the transaction that it guards.
//!
//! Contains the SQL (`fence.sql`, for a DBA to read and apply: [`SCHEMA_SQL`]) and the code that the two
//! adapters share. The rule is implemented in `fence.sql`, as functions of the server, so that it applies to
//! programs in any language. The caller's connections are used; none are opened here.
//!
//! The adapters are [`tokio_postgres`] and [`sqlx`]: the same calls for two client libraries (features
//! `tokio-postgres` and `sqlx`). Three ways to fence a table:
//!
//! - `enter`, then `write` as the first statement of a transaction: any number of tables under one resource
//!   name, all modes, marks in a separate table.
//! - [`Column`]: a table with one mark per row, nothing to install; exclusive holds only.
//! - `lockkeeper_fence.guard_table('orders')`: a trigger, for programs that write to the table and can't be
//!   changed.
//!
//! Durability. Marks survive a killed client or server. They survive a power loss if the server runs with
//! `fsync = on`: a check sets `synchronous_commit` to `local` for its transaction if it is `off` (the plain
//! statements of [`Column`] can't do so: with these, don't set `synchronous_commit` to `off`). They survive a
//! fail-over only to a synchronous replica (`synchronous_standby_names`, and `synchronous_commit` at least
//! `on`): otherwise the replica's marks may be older than those acknowledged, and a stale holder may pass.
//! [`Findings`] has the server's settings.
//!
//! Transaction poolers (pgbouncer) work: a check needs no session state beyond its transaction.

mod column;
mod error;
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
mod reported;
#[cfg(feature = "sqlx")]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;

pub use column::Column;
pub use error::PostgresError;

#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
use shared::{READ_MARKS, RESET, SETTINGS, arguments, bigint, call, found, marks_of};

/// The schema, its table and its functions, as plain SQL with comments. The rights of applications are not
/// part of it: [`grants_sql`] returns them. Applied only if the caller calls `install`.
pub const SCHEMA_SQL: &str = include_str!("fence.sql");

/// The version of [`SCHEMA_SQL`], as returned by `lockkeeper_fence.version()`.
pub const SCHEMA_VERSION: i32 = 1;

/// The minimal rights of `role` for the fence, as SQL: to use the schema, and to call all functions that an
/// application needs. None of these lowers a mark. Apply it as the role that applied [`SCHEMA_SQL`].
#[must_use]
pub fn grants_sql(role: &str) -> String {
    let role = column::quoted(role);
    format!(
        "GRANT USAGE ON SCHEMA lockkeeper_fence TO {role};\n\
         GRANT EXECUTE ON FUNCTION lockkeeper_fence.enter, lockkeeper_fence.check_write, \
         lockkeeper_fence.check_once, lockkeeper_fence.read_marks, lockkeeper_fence.version TO {role};\n"
    )
}

/// The server's settings that matter for marks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Findings {
    /// `server_version`: `15.18 (Debian …)`.
    pub server_version: String,
    /// `fsync`: without it no commit is guaranteed to survive a power loss.
    pub fsync: bool,
    /// `synchronous_commit` of this session. A check overrides `off`.
    pub synchronous_commit: String,
    /// `synchronous_standby_names`: empty if commits don't wait for replicas.
    pub synchronous_standby_names: String,
}

impl Findings {
    /// Settings that weaken durability, one sentence each; empty if there are none.
    #[must_use]
    pub fn weaknesses(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !self.fsync {
            found.push(
                "fsync = off: a power loss or a crash of the system may lose marks that were acknowledged, or the \
                 whole database; set fsync = on"
                    .to_owned(),
            );
        }
        if self.synchronous_commit == "off" {
            found.push(
                "synchronous_commit = off: a crash of the server may take back what the statements of a Column did, and \
                 writes that committed before a check; SET synchronous_commit = local, or on"
                    .to_owned(),
            );
        }
        let waits = ["on", "remote_apply", "remote_write"].contains(&self.synchronous_commit.as_str());
        if self.synchronous_standby_names.is_empty() || !waits {
            found.push(format!(
                "a fail-over may lose marks that were acknowledged, since no replica is waited for \
                 (synchronous_standby_names = '{}', synchronous_commit = {}); after one, enter again with a new token \
                 before anything is read",
                self.synchronous_standby_names, self.synchronous_commit
            ));
        }
        found
    }
}

/// Code that the two adapters share.
#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
mod shared {
    use super::{Findings, PostgresError, SCHEMA_VERSION};
    use crate::resource::checked;
    use crate::rule::{Action, Marks, Pair, Section};
    use lockkeeper_core::{Slot, Token};

    pub(crate) const READ_MARKS: &str =
        "SELECT slot, any_token, writer_token FROM lockkeeper_fence.read_marks($1)";
    pub(crate) const RESET: &str = "SELECT lockkeeper_fence.reset_marks($1, $2)";
    pub(crate) const SETTINGS: &str = "SELECT current_setting('server_version'), current_setting('fsync') = 'on', \
         current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), pg_is_in_recovery(), \
         lockkeeper_fence.version()";

    /// The SQL call that checks; `$1` to `$4` are the [`Arguments`].
    pub(crate) const fn call(action: Action) -> &'static str {
        match action {
            Action::Enter => "SELECT lockkeeper_fence.enter($1, $2, $3, $4)",
            Action::Write => "SELECT lockkeeper_fence.check_write($1, $2, $3, $4)",
            Action::CheckOnce => "SELECT lockkeeper_fence.check_once($1, $2, $3, $4)",
        }
    }

    /// The arguments of the server's functions for a section.
    pub(crate) struct Arguments<'a> {
        pub(crate) resource: &'a str,
        pub(crate) mode: String,
        pub(crate) slot: Option<i32>,
        pub(crate) token: i64,
    }

    pub(crate) fn arguments(resource: &str, section: Section) -> Result<Arguments<'_>, PostgresError> {
        checked(resource)?;
        Ok(Arguments {
            resource,
            mode: section.mode().to_string(),
            slot: section.slot().map(|slot| i32::try_from(slot).expect("a section's slot is below 2^16")),
            token: bigint(section.token()),
        })
    }

    pub(crate) fn bigint(token: Token) -> i64 {
        i64::try_from(token.get()).expect("a token is below 2^53")
    }

    /// Builds the marks from rows of [`READ_MARKS`]. Slots whose marks are not above the base are left out,
    /// as in the rule.
    pub(crate) fn marks_of(
        resource: &str,
        rows: impl Iterator<Item = (i32, i64, i64)>,
    ) -> Result<Marks, PostgresError> {
        let mut marks = Marks::default();
        let mut slots = Vec::new();
        for (slot, any, writer) in rows {
            let damaged = || PostgresError::MarksCorrupt { resource: resource.to_owned(), slot, any, writer };
            let pair =
                Pair { any: mark(any).ok_or_else(damaged)?, writer: mark(writer).ok_or_else(damaged)? };
            match slot {
                -1 => marks.base = pair,
                _ => slots.push((Slot::try_from(slot).map_err(|_| damaged())?, pair)),
            }
        }
        for (slot, own) in slots {
            let base = marks.base;
            let effective = Pair { any: own.any.max(base.any), writer: own.writer.max(base.writer) };
            if effective != base {
                marks.slots.insert(slot, effective);
            }
        }
        Ok(marks)
    }

    /// Converts a stored value. `Some(None)` for 0: no token has passed. `None` for a value that is no mark.
    fn mark(value: i64) -> Option<Option<Token>> {
        match value {
            0 => Some(None),
            _ => Token::new(u64::try_from(value).ok()?).map(Some),
        }
    }

    /// Builds the findings from a row of [`SETTINGS`]; an error for a replica or another schema version.
    pub(crate) fn found(
        (server_version, fsync, synchronous_commit, synchronous_standby_names): (
            String,
            bool,
            String,
            String,
        ),
        in_recovery: bool,
        schema: i32,
    ) -> Result<Findings, PostgresError> {
        if in_recovery {
            return Err(PostgresError::Replica);
        }
        if schema != SCHEMA_VERSION {
            return Err(PostgresError::OtherVersion { found: schema });
        }
        Ok(Findings { server_version, fsync, synchronous_commit, synchronous_standby_names })
    }
}
