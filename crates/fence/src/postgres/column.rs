//! A table with a fence column (`fence bigint NOT NULL DEFAULT 0`): one mark per row.
//!
//! Builds the statements as plain SQL text, and interprets updates that matched no row. The condition `fence
//! <= token` in the `UPDATE` itself makes check and effect one step, in any isolation level; apart from the
//! column, nothing needs to be installed. Marks are as durable as the session's `synchronous_commit`: with
//! `off`, a server crash may lose a mark after a section has read under it. One mark can't distinguish
//! readers or slots, so only exclusive holds can use it.

use lockkeeper_core::{ModeKind, Token};

use super::error::PostgresError;
use crate::rule::{Action, Refused, Section};

/// A table with a key column and a fence column.
///
/// ```
/// use lockkeeper_fence::postgres::Column;
///
/// let orders = Column::new("shop.orders", "id", "fence");
/// assert_eq!(
///     orders.enter_sql(),
///     r#"UPDATE "shop"."orders" SET "fence" = $2 WHERE "id" = $1 AND "fence" <= $2"#
/// );
/// assert_eq!(
///     orders.write_sql("state = $3, note = $4"),
///     r#"UPDATE "shop"."orders" SET state = $3, note = $4, "fence" = $2 WHERE "id" = $1 AND "fence" <= $2"#
/// );
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    table: String,
    key: String,
    fence: String,
}

impl Column {
    /// `table` may be qualified with a schema (`shop.orders`). Names are quoted, so they are case-sensitive.
    #[must_use]
    pub fn new(table: &str, key: &str, fence: &str) -> Self {
        let table = table.split('.').map(quoted).collect::<Vec<_>>().join(".");
        Self { table, key: quoted(key), fence: quoted(fence) }
    }

    /// Adds the fence column to the table. Existing rows start at 0, which any token passes; the table is not
    /// rewritten.
    #[must_use]
    pub fn add_sql(&self) -> String {
        format!("ALTER TABLE {} ADD COLUMN {} bigint NOT NULL DEFAULT 0", self.table, self.fence)
    }

    /// Raises the mark of the row with the key `$1` to the token `$2` (bigint). Commit it before the section
    /// reads.
    #[must_use]
    pub fn enter_sql(&self) -> String {
        let Self { table, key, fence } = self;
        format!("UPDATE {table} SET {fence} = $2 WHERE {key} = $1 AND {fence} <= $2")
    }

    /// Writes the row with the key `$1` under the token `$2`. `set` is the `SET` clause, with parameters from
    /// `$3` on. It is inserted as raw SQL: never build it from untrusted input.
    #[must_use]
    pub fn write_sql(&self, set: &str) -> String {
        let Self { table, key, fence } = self;
        format!("UPDATE {table} SET {set}, {fence} = $2 WHERE {key} = $1 AND {fence} <= $2")
    }

    /// As [`write_sql`](Self::write_sql), but each token passes only once, and `enter` is not needed: for an
    /// effect that does not depend on anything read before, executed at most once per grant (rule F-d).
    #[must_use]
    pub fn write_once_sql(&self, set: &str) -> String {
        let Self { table, key, fence } = self;
        format!("UPDATE {table} SET {set}, {fence} = $2 WHERE {key} = $1 AND {fence} < $2")
    }

    /// Selects the mark of the row with the key `$1`.
    #[must_use]
    pub fn mark_sql(&self) -> String {
        format!("SELECT {} FROM {} WHERE {} = $1", self.fence, self.table, self.key)
    }

    /// The token as a `bigint`, if a fence column can check the section.
    ///
    /// # Errors
    /// [`PostgresError::ExclusiveOnly`] for shared holds and for permits of a slot.
    pub fn token(&self, section: Section) -> Result<i64, PostgresError> {
        match (section.mode(), section.slot()) {
            // A permit without a known slot is checked like an exclusive hold.
            (ModeKind::Exclusive, _) | (ModeKind::Permit, None) => Ok(bigint(section.token())),
            (mode, _) => Err(PostgresError::ExclusiveOnly { mode }),
        }
    }

    /// Why an update changed no row. `mark` is the result of [`mark_sql`](Self::mark_sql): `None` for no row,
    /// `Some(None)` for NULL.
    #[must_use]
    pub fn why_no_row(&self, action: Action, section: Section, mark: Option<Option<i64>>) -> PostgresError {
        let table = self.table.clone();
        let offered = section.token();
        match mark {
            None => PostgresError::RowAbsent { table, key: self.key.clone() },
            Some(None) => PostgresError::ColumnNull { table, column: self.fence.clone() },
            Some(Some(mark)) if mark == bigint(offered) && action == Action::CheckOnce => {
                Refused::Repeated { token: offered }.into()
            }
            Some(Some(mark)) if (0..=bigint(offered)).contains(&mark) => {
                PostgresError::NoRowMatched { table, token: offered, mark }
            }
            Some(Some(value)) => match u64::try_from(value).ok().and_then(Token::new) {
                Some(highest) => Refused::Stale { offered, highest }.into(),
                None => PostgresError::ColumnOutOfRange { table, column: self.fence.clone(), value },
            },
        }
    }
}

fn bigint(token: Token) -> i64 {
    i64::try_from(token.get()).expect("a token is below 2^53")
}

/// A quoted SQL identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exclusive(value: u64) -> Section {
        Section::exclusive(Token::new(value).expect("a token"))
    }

    #[test]
    fn names_are_quoted() {
        let column = Column::new("a\"; DROP TABLE b; --", "Id", "fence");
        assert_eq!(column.mark_sql(), r#"SELECT "fence" FROM "a""; DROP TABLE b; --" WHERE "Id" = $1"#);
    }

    #[test]
    fn update_without_rows_is_explained_by_the_mark() {
        let column = Column::new("orders", "id", "fence");
        let why = |mark| column.why_no_row(Action::Write, exclusive(5), mark);
        let highest = Token::new(7).expect("a token");
        assert!(
            matches!(why(Some(Some(7))), PostgresError::Refused(Refused::Stale { highest: found, .. }) if found == highest)
        );
        assert!(matches!(why(Some(Some(5))), PostgresError::NoRowMatched { mark: 5, .. }));
        let once = column.why_no_row(Action::CheckOnce, exclusive(5), Some(Some(5)));
        assert!(matches!(once, PostgresError::Refused(Refused::Repeated { .. })), "{once}");
        assert!(matches!(why(Some(None)), PostgresError::ColumnNull { .. }));
        assert!(matches!(why(None), PostgresError::RowAbsent { .. }));
        for value in [-1, i64::MAX] {
            assert!(matches!(why(Some(Some(value))), PostgresError::ColumnOutOfRange { .. }), "{value}");
        }
    }

    #[test]
    fn readers_and_slots_are_refused() {
        let column = Column::new("orders", "id", "fence");
        let token = Token::new(5).expect("a token");
        assert_eq!(column.token(exclusive(5)).expect("exclusive"), 5);
        assert!(column.token(Section::new(ModeKind::Permit, None, token).expect("a section")).is_ok());
        for section in [Section::shared(token), Section::permit(0, token).expect("a slot")] {
            assert!(matches!(column.token(section), Err(PostgresError::ExclusiveOnly { .. })), "{section:?}");
        }
    }
}
