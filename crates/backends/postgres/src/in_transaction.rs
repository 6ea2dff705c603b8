//! Advisory locks in the caller's own transaction, held until it ends in any way.

use lockkeeper_core::{LockName, NameError, Token};
use tokio_postgres::{GenericClient, SimpleQueryMessage, SimpleQueryRow};

use super::advisory;
use super::keys::{AdvisoryKey, KeyError, PgKey};

/// A lock that the caller's transaction holds until it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TransactionLock {
    /// The fencing token. `None` if the database has no sequence `lockkeeper.token` (see `lockkeeper postgres
    /// init`), if this user may not use it, or if its options could issue a lower token later.
    ///
    /// Writes in the same transaction need no token. For other resources the token is like any other, but it
    /// is durable only once the transaction is committed: if the server crashes before, the token may be
    /// issued again. Therefore the commit waits for the disk: `synchronous_commit = off` is changed to
    /// `local` for this transaction.
    pub token: Option<Token>,
}

/// Why a transaction did not get a lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionLockError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The rule has no key for the name.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The connection is not in a transaction, so the lock was released right after its statement.
    #[error("`{name}` can only be locked inside a transaction: begin one first; nothing is held")]
    NotInTransaction {
        /// The lock's name.
        name: String,
    },
    /// The server's answer is unreadable.
    #[error("the server's answer can't be read")]
    Unreadable,
    /// The server refused a statement, or the connection is lost. After a refusal PostgreSQL requires a
    /// rollback of the transaction.
    #[error("the server did not give the lock")]
    Postgres(#[from] tokio_postgres::Error),
}

/// Locks `name` in the caller's own transaction, and waits for the lock as long as the transaction's
/// `lock_timeout` allows. Excludes, and is excluded by, `?lock=session` with the same key rule in the same
/// database.
///
/// ```no_run
/// use lockkeeper::backends::postgres::{PgKey, lock_in_transaction, tokio_postgres};
/// # async fn example(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// lock_in_transaction(&transaction, "orders/42", PgKey::default(), false).await?;
/// transaction.batch_execute("update orders set state = 'paid' where id = 42").await?;
/// transaction.commit().await?; // and the lock is free
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`TransactionLockError`]. After `Postgres` or `Unreadable` the lock may be held until the transaction
/// ends; after the other errors nothing is held.
pub async fn lock_in_transaction(
    client: &impl GenericClient,
    name: impl AsRef<str>,
    key: PgKey,
    shared: bool,
) -> Result<TransactionLock, TransactionLockError> {
    let locked = lock(client, name.as_ref(), key, shared, true).await?;
    locked.ok_or(TransactionLockError::Unreadable)
}

/// Like [`lock_in_transaction`], without waiting: `None` if the lock is not free.
///
/// # Errors
/// As [`lock_in_transaction`].
pub async fn try_lock_in_transaction(
    client: &impl GenericClient,
    name: impl AsRef<str>,
    key: PgKey,
    shared: bool,
) -> Result<Option<TransactionLock>, TransactionLockError> {
    lock(client, name.as_ref(), key, shared, false).await
}

async fn lock(
    client: &impl GenericClient,
    name: &str,
    key: PgKey,
    shared: bool,
    wait: bool,
) -> Result<Option<TransactionLock>, TransactionLockError> {
    let name = LockName::parse(name)?;
    let key = match key.server_side(name.as_str()) {
        None => key.key(name.as_str())?,
        Some(expression) => {
            let row = row(client, &format!("select {expression}")).await?;
            let number = row.get(0).and_then(|number| number.parse().ok());
            AdvisoryKey::Number(number.ok_or(TransactionLockError::Unreadable)?)
        }
    };
    let family = if wait { "pg_advisory_xact_lock" } else { "pg_try_advisory_xact_lock" };
    let mode = if shared { "_shared" } else { "" };
    let call = format!("pg_catalog.{family}{mode}({})", key.arguments());
    let locked = row(client, &format!("select {call}")).await?;
    if !wait && locked.get(0) != Some("t") {
        return Ok(None);
    }
    let found = row(client, &advisory::is_held_and_fences(key, shared)).await?;
    if found.get(0) != Some("t") {
        return Err(TransactionLockError::NotInTransaction { name: name.as_str().to_owned() });
    }
    if !advisory::gives_tokens(found.get(1)) {
        return Ok(Some(TransactionLock { token: None }));
    }
    let drawn = row(client, &advisory::draw_in_transaction()).await?;
    let token = drawn.get(0).and_then(|token| token.parse().ok()).and_then(Token::new);
    Ok(Some(TransactionLock { token: Some(token.ok_or(TransactionLockError::Unreadable)?) }))
}

/// Runs a statement in the simple protocol, which every pooler supports, and returns its last row.
async fn row(client: &impl GenericClient, sql: &str) -> Result<SimpleQueryRow, TransactionLockError> {
    let answers = client.simple_query(sql).await?;
    let row = |answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    answers.into_iter().filter_map(row).last().ok_or(TransactionLockError::Unreadable)
}
