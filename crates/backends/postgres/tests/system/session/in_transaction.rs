//! Locks in the caller's own transaction.

use lockkeeper::backends::postgres::tokio_postgres::{Client, NoTls, connect};
use lockkeeper::backends::postgres::{
    PgKey, TransactionLockError, lock_in_transaction, try_lock_in_transaction,
};
use lockkeeper_rig::{PgBouncer, Postgres};

use crate::session::world::World;

async fn client(port: u16) -> Client {
    let at = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) = connect(&at, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn transaction_lock_excludes_and_is_excluded_until_the_end() {
    let world = World::start();
    let locks = world.client("ours").await;
    let mut client = client(world.server.port()).await;
    for commit in [true, false] {
        let transaction = client.transaction().await.unwrap();
        let mine = lock_in_transaction(&transaction, "a", PgKey::default(), false).await.unwrap();
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        if commit {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        let next = locks.mutex("a").acquire().await.unwrap();
        assert!(mine.token.is_some() && next.token_hint() > mine.token);
        let transaction = client.transaction().await.unwrap();
        let busy = try_lock_in_transaction(&transaction, "a", PgKey::default(), false).await.unwrap();
        assert_eq!(busy, None);
        transaction.rollback().await.unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn shared_transaction_locks_coexist() {
    let world = World::start();
    let locks = world.client("ours").await;
    let _reader = locks.rw("a").read().acquire().await.unwrap();
    let mut client = client(world.server.port()).await;
    let transaction = client.transaction().await.unwrap();
    for key in [PgKey::default(), PgKey::Hashtext] {
        assert!(try_lock_in_transaction(&transaction, "a", key, true).await.unwrap().is_some());
    }
    assert!(try_lock_in_transaction(&transaction, "a", PgKey::default(), false).await.unwrap().is_none());
}

#[tokio::test]
async fn lock_outside_of_a_transaction_is_an_error_and_holds_nothing() {
    let world = World::start();
    let client = client(world.server.port()).await;
    let error = lock_in_transaction(&client, "a", PgKey::default(), false).await.unwrap_err();
    assert!(matches!(&error, TransactionLockError::NotInTransaction { name } if name == "a"), "{error}");
    assert_eq!(world.locks(), 0);
}

#[tokio::test]
async fn transaction_lock_works_without_the_schema_and_through_a_pooler() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server);
    let mut client = client(pooler.port()).await;
    let transaction = client.transaction().await.unwrap();
    let mine = lock_in_transaction(&transaction, "a", PgKey::Sqlx, false).await.unwrap();
    assert_eq!(mine.token, None);
    transaction.commit().await.unwrap();
}
