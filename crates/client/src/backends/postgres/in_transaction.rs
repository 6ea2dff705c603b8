//! Locks in a transaction of the caller's own: held until it ends, however it ends.

use lockkeeper_core::{LockName, NameError, Token};
use tokio_postgres::{GenericClient, SimpleQueryMessage, SimpleQueryRow};

use super::advisory;
use super::keys::{AdvisoryKey, KeyError, PgKey};

/// A lock that the caller's transaction holds until its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TransactionLock {
    /// Its fencing token; `None` without the schema of `lockkeeper postgres init`, or without the right to use it. What
    /// the same transaction writes needs no token. For resources elsewhere it is a token like any other, but durable only
    /// once the transaction is committed: if the server crashes before, it may be given again. So that commit waits for the
    /// disk, also where `synchronous_commit` is off, which is set to `local` for this transaction.
    pub token: Option<Token>,
}

/// Why a transaction has no lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionLockError {
    /// The name is not one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name has no key by that rule.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The connection is in no transaction, so that the lock was over as soon as it was held.
    #[error("`{name}` can only be locked inside a transaction: begin one first; nothing is held")]
    NotInTransaction {
        /// The lock's name.
        name: String,
    },
    /// The server's answer makes no sense.
    #[error("the server's answer can't be read")]
    Unreadable,
    /// The server refused, or is gone. By the rules of Postgres the transaction is to be rolled back.
    #[error("the server did not give the lock")]
    Postgres(#[from] tokio_postgres::Error),
}

/// Locks `name` for the caller's own transaction, and waits for it as long as that's `lock_timeout` allows. It excludes,
/// and is excluded by, `?lock=session` and `?lock=transaction` with the same rule for keys, in the same database.
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
/// [`TransactionLockError`]. Nothing is held, except where the server refused: then until the transaction is rolled back.
pub async fn lock_in_transaction(
    client: &impl GenericClient,
    name: impl AsRef<str>,
    key: PgKey,
    shared: bool,
) -> Result<TransactionLock, TransactionLockError> {
    let locked = lock(client, name.as_ref(), key, shared, true).await?;
    locked.ok_or(TransactionLockError::Unreadable)
}

/// As [`lock_in_transaction`], without waiting: `None` if it isn't free.
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

/// The last row of a statement, in the simple protocol: any pooler carries it.
async fn row(client: &impl GenericClient, sql: &str) -> Result<SimpleQueryRow, TransactionLockError> {
    let answers = client.simple_query(sql).await?;
    let row = |answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    answers.into_iter().filter_map(row).last().ok_or(TransactionLockError::Unreadable)
}
