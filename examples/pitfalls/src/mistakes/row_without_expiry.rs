//! A row as a lock.

use std::time::Duration;

use lockkeeper_rig::Postgres;
use lockkeeper_rig::postgres::{PSQL, SERVER};
use tokio_postgres::error::SqlState;

use crate::account::TTL;
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result};

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
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let database = role.postgres("database").await?;
    let mut waits = false;
    loop {
        let insert = "INSERT INTO locks (name, owner) VALUES ('nightly', $1)";
        match database.execute(insert, &[&role.actor()]).await {
            Ok(_) => break,
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                if !waits {
                    waits = true;
                    role.at("waits", "waits: the row exists").await?;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    role.at("locked", "INSERT INTO locks: has the lock").await?;
    database.execute("DELETE FROM locks WHERE name = 'nightly'", &[]).await?;
    role.say("DELETE FROM locks")
}

async fn right(role: &mut Role) -> Result {
    let locks = role.locks("locks").await?.fenced()?;
    let guard = role.acquire(&locks.mutex("nightly").ttl(TTL)).await?;
    role.at("locked", format!("has the lock, with token {}", guard.token())).await?;
    role.release(guard).await
}

fn script(stage: &mut Stage<'_>) -> Result<Outcome> {
    let postgres = Postgres::start();
    postgres.psql("CREATE TABLE locks (name text PRIMARY KEY, owner text NOT NULL)");
    postgres.psql(&lockkeeper::backends::postgres::schema_sql(None));
    stage.serve("database", postgres.url());
    stage.serve("locks", format!("{}?lock=row", postgres.url()));
    stage.start("A", &["locked"])?;
    stage.kill("A")?;
    stage.start("B", &["waits"])?;
    stage.go("B", &[])?;
    let of_a = || postgres.psql("SELECT count(*) FROM locks WHERE owner = 'A'") == "1";
    if !stage.comes("B", 2 * TTL, of_a)? {
        return Ok(Outcome::Lost("B waits for ever: A is dead, and its row stays".to_owned()));
    }
    Ok(Outcome::Kept("B gets the lock when A's lease is over".to_owned()))
}
