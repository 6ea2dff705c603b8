//! A session's advisory lock, where there are no sessions.

use lockkeeper_rig::postgres::{PSQL, SERVER};
use lockkeeper_rig::{PgBouncer, Postgres, pgbouncer};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::account::{self, TTL};
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "advisory-through-pooler",
    title: "A session's advisory lock through a transaction pooler",
    mistake: "`pg_advisory_lock` belongs to a server process, and the same process may take it again. A pooler in \
              transaction mode hands that process to another client after each statement: both \"have\" the lock. And \
              the unlock may run at another process, where it does nothing.",
    remedy: "`lock=row`, which needs no session; or `lock_in_transaction`, a lock that ends with the transaction which \
             also writes. `lock=session` through such a pooler is an error of the library.",
    needs: &[SERVER, PSQL, pgbouncer::SERVER],
    source: include_str!("advisory_through_pooler.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let database = actor.postgres("pooler").await?;
    database.batch_execute("SELECT pg_advisory_lock(42)").await?;
    actor.say("SELECT pg_advisory_lock(42): has the lock")?;
    let balance = number(&database, "SELECT balance FROM account").await?.unwrap_or_default();
    actor.at("read", format!("reads the balance: {balance}")).await?;
    let balance = balance - account::AMOUNT;
    database.batch_execute(&format!("UPDATE account SET balance = {balance}")).await?;
    actor.say(format!("writes {balance}"))?;
    database.batch_execute("SELECT pg_advisory_unlock(42)").await?;
    actor.say("SELECT pg_advisory_unlock(42)")
}

async fn right(actor: &mut Actor) -> Result {
    let database = actor.postgres("pooler").await?;
    let locks = actor.locks("locks").await?.fenced()?;
    loop {
        let guard = actor.acquire(&locks.mutex("account").ttl(TTL)).await?;
        let token = guard.token();
        actor.say(format!("has the lock, with token {token}"))?;
        // Enters and reads in one statement.
        let enter = format!("UPDATE account SET fence = {token} WHERE fence <= {token} RETURNING balance");
        let Some(balance) = number(&database, &enter).await? else { continue };
        actor.at("read", format!("reads the balance: {balance}")).await?;
        let balance = balance - account::AMOUNT;
        let write =
            format!("UPDATE account SET balance = {balance} WHERE fence <= {token} RETURNING balance");
        if number(&database, &write).await?.is_some() {
            actor.say(format!("writes {balance}, with its token"))?;
            return actor.release(guard).await;
        }
    }
}

/// The number that a statement returns, if it returns a row.
async fn number(database: &Client, statement: &str) -> Result<Option<i64>> {
    for message in database.simple_query(statement).await? {
        if let SimpleQueryMessage::Row(row) = message {
            return Ok(Some(row.get(0).ok_or("null")?.parse()?));
        }
    }
    Ok(None)
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let postgres = Postgres::start();
    postgres.psql("CREATE TABLE account AS SELECT 100::bigint AS balance, 0::bigint AS fence");
    postgres.psql(&lockkeeper::backends::postgres::schema_sql(None));
    let pooler = PgBouncer::with(&postgres, &["default_pool_size=1"]);
    scene.serve("pooler", pooler.url());
    scene.serve("locks", format!("{}?lock=row", pooler.url()));
    scene.start("A", &["read"])?;
    scene.start("B", &["waits", "read"])?;
    scene.end("A")?;
    scene.end("B")?;
    Ok(account::judge(postgres.psql("SELECT balance FROM account").parse()?, 2))
}
