//! A row as a lock.

use std::time::Duration;

use lockkeeper_rig::Postgres;
use lockkeeper_rig::postgres::{PSQL, SERVER};
use tokio_postgres::error::SqlState;

use crate::account::TTL;
use crate::actor::Actor;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict};

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "row-without-expiry",
    title: "A row that is inserted as a lock, without an expiry",
    mistake: "A unique key lets one client insert the row, which deletes it in the end. It is the lock without a ttl \
              once more, and it survives each restart: the row of a dead holder stays for ever.",
    remedy: "A row with a lease (`postgres://…?lock=row`), or an advisory lock, which ends with its connection \
             (`lock=session`), or with its transaction.",
    needs: &[SERVER, PSQL],
    source: include_str!("row_without_expiry.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let database = actor.postgres("database").await?;
    let mut waits = false;
    loop {
        let insert = "INSERT INTO locks (name, owner) VALUES ('nightly', $1)";
        match database.execute(insert, &[&actor.name()]).await {
            Ok(_) => break,
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                if !waits {
                    waits = true;
                    actor.at("waits", "waits: the row exists").await?;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    actor.at("locked", "INSERT INTO locks: has the lock").await?;
    database.execute("DELETE FROM locks WHERE name = 'nightly'", &[]).await?;
    actor.say("DELETE FROM locks")
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?.fenced()?;
    let guard = actor.acquire(&locks.mutex("nightly").ttl(TTL)).await?;
    actor.at("locked", format!("has the lock, with token {}", guard.token())).await?;
    actor.release(guard).await
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let postgres = Postgres::start();
    postgres.psql("CREATE TABLE locks (name text PRIMARY KEY, owner text NOT NULL)");
    postgres.psql(&lockkeeper::backends::postgres::schema_sql(None));
    scene.serve("database", postgres.url());
    scene.serve("locks", format!("{}?lock=row", postgres.url()));
    scene.start("A", &["locked"])?;
    scene.kill("A")?;
    scene.start("B", &["waits"])?;
    scene.go("B", &[])?;
    let of_a = || postgres.psql("SELECT count(*) FROM locks WHERE owner = 'A'") == "1";
    if !scene.comes("B", 2 * TTL, of_a)? {
        return Ok(Verdict::Lost("B waits for ever: A is dead, and its row stays".to_owned()));
    }
    Ok(Verdict::Kept("B gets the lock when A's lease is over".to_owned()))
}
