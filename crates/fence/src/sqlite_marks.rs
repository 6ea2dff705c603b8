//! The SQL of the SQLite fence, and the rule over the rows of its table: for the fence on `rusqlite`
//! (`sqlite.rs`), and for fences of other languages on their own connections. The MySQL fence (`mysql.rs`)
//! has rows of the same kind.
//!
//! A check is: [`LOCK`], [`READ`], [`marks`], [`Marks::check`], and the statements of [`changes`], all in one
//! transaction.

use lockkeeper_core::{Slot, Token};

use crate::rule::{Marks, Pair};

/// The table: one row per resource (slot -1), and one per permit slot whose marks are above the base. The
/// value 0 means that no token has passed.
pub const SCHEMA_SQL: &str = "CREATE TABLE IF NOT EXISTS lockkeeper_fence_marks (
    resource     TEXT    NOT NULL,
    slot         INTEGER NOT NULL,
    any_token    INTEGER NOT NULL,
    writer_token INTEGER NOT NULL,
    PRIMARY KEY (resource, slot)
) WITHOUT ROWID";

/// The first statement of a check; its parameters are the resource, and the section's slot or -1.
///
/// This write comes before the marks are read. In a DEFERRED transaction it takes the write lock, or fails if
/// another connection committed a write after this transaction's first read. It rewrites the base row and the
/// slot's row even if no mark rises: a transaction with a lower `synchronous` level may have raised these
/// marks, and this commit makes them durable. `slot` is set because it is part of the key, so SQLite deletes
/// and inserts the row; an update of other columns to equal values would write nothing.
pub const LOCK: &str =
    "UPDATE lockkeeper_fence_marks SET slot = slot WHERE resource = ?1 AND slot IN (-1, ?2)";
/// Reads the rows of a resource: slot, `any_token`, `writer_token`.
pub const READ: &str = "SELECT slot, any_token, writer_token FROM lockkeeper_fence_marks WHERE resource = ?1";
/// Writes a row: the resource, the slot, `any_token`, `writer_token`.
pub const PUT: &str = "INSERT OR REPLACE INTO lockkeeper_fence_marks VALUES (?1, ?2, ?3, ?4)";
/// Deletes the row of a slot: the resource, the slot.
pub const DELETE: &str = "DELETE FROM lockkeeper_fence_marks WHERE resource = ?1 AND slot = ?2";
/// Deletes all rows of a resource, for a reset.
pub const DELETE_ALL: &str = "DELETE FROM lockkeeper_fence_marks WHERE resource = ?1";

/// The slot of the base's row.
pub(crate) const BASE: i64 = -1;

/// A row with values that no fence writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DamagedRow {
    /// The row's slot.
    pub slot: i64,
    /// The row's `any_token`.
    pub any: i64,
    /// The row's `writer_token`.
    pub writer: i64,
}

impl DamagedRow {
    /// What to do about it.
    #[must_use]
    pub fn text(self, resource: &str) -> String {
        let Self { slot, any, writer } = self;
        format!(
            "the marks of `{resource}` are damaged: slot {slot} has any_token {any}, writer_token {writer}. Stop all \
             writers, find the last token granted (`lockkeeper check-token`), and call `reset` with it"
        )
    }
}

/// A row that changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// By [`PUT`].
    Put {
        /// The slot.
        slot: i64,
        /// `any_token`.
        any: i64,
        /// `writer_token`.
        writer: i64,
    },
    /// By [`DELETE`].
    Delete {
        /// The slot.
        slot: i64,
    },
}

/// The marks in the rows that [`READ`] returns.
///
/// # Errors
/// A row is damaged.
pub fn marks(rows: impl IntoIterator<Item = (i64, i64, i64)>) -> Result<Marks, DamagedRow> {
    let mut marks = Marks::default();
    for (slot, any, writer) in rows {
        let damaged = DamagedRow { slot, any, writer };
        let pair = Pair { any: mark(any).ok_or(damaged)?, writer: mark(writer).ok_or(damaged)? };
        if pair.writer > pair.any {
            return Err(damaged);
        }
        match slot {
            BASE => marks.base = pair,
            _ => _ = marks.slots.insert(Slot::try_from(slot).map_err(|_| damaged)?, pair),
        }
    }
    Ok(marks)
}

/// The rows that differ after a check.
#[must_use]
pub fn changes(before: &Marks, after: &Marks) -> Vec<Change> {
    let base = (after.base != before.base).then(|| put(BASE, after.base));
    // The rule dropped a slot because its marks are not above the base.
    let dropped = before.slots.keys().filter(|slot| !after.slots.contains_key(slot));
    let raised = after.slots.iter().filter(|(slot, pair)| before.slots.get(slot) != Some(pair));
    base.into_iter()
        .chain(dropped.map(|slot| Change::Delete { slot: i64::from(*slot) }))
        .chain(raised.map(|(slot, pair)| put(i64::from(*slot), *pair)))
        .collect()
}

/// The only row after a reset to this token.
#[must_use]
pub fn base(to: Token) -> Change {
    put(BASE, Pair { any: Some(to), writer: Some(to) })
}

fn put(slot: i64, pair: Pair) -> Change {
    let number =
        |mark: Option<Token>| i64::try_from(mark.map_or(0, Token::get)).expect("a token is below 2^53");
    Change::Put { slot, any: number(pair.any), writer: number(pair.writer) }
}

/// Converts a stored value. `Some(None)` for 0: no token has passed. `None` for a value that is no mark.
fn mark(value: i64) -> Option<Option<Token>> {
    match value {
        0 => Some(None),
        _ => Token::new(u64::try_from(value).ok()?).map(Some),
    }
}
