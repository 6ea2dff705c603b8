//! Names and keys, compared with the server's own view.

use lockkeeper::Locks;
use lockkeeper::backends::postgres::tokio_postgres::{NoTls, connect};
use lockkeeper::backends::postgres::{AdvisoryKey, PgKey};

use crate::session::world::World;

const NAME: &str = "orders:42:checkout";

impl World {
    async fn with_key(&self, key: &str) -> Locks {
        Locks::connect(&format!("{}&key={key}", self.url())).await.unwrap()
    }

    /// The advisory locks in the server's view.
    fn locked(&self) -> String {
        let shown = "select classid, objid, objsubid from pg_locks where locktype = 'advisory'";
        self.server.psql(shown).trim().to_owned()
    }
}

#[tokio::test]
async fn server_locks_the_key_of_each_rule() {
    let world = World::start();
    for (key, name) in [
        ("lockkeeper", NAME),
        ("sqlx", NAME),
        ("madelson", NAME),
        ("madelson", "job1"),
        ("ruby:-3", NAME),
        ("tooz", NAME),
        ("message-db", NAME),
        ("raw", "-1"),
        ("raw", "-1,7"),
    ] {
        let locks = world.with_key(key).await;
        // At startup the client tries a lock on a connection that it then closes. The server may hold that
        // lock for a moment longer.
        world.until_nothing_is_left().await;
        let held = locks.mutex(name).acquire().await.unwrap();
        let expected = match key.parse::<PgKey>().unwrap().key(name).unwrap() {
            AdvisoryKey::Number(number) => {
                format!("{}|{}|1", (number >> 32) as u32, (number & 0xffff_ffff) as u32)
            }
            AdvisoryKey::Pair(a, b) => format!("{}|{}|2", a.cast_unsigned(), b.cast_unsigned()),
            other => panic!("{other:?}"),
        };
        assert_eq!(world.locked(), expected, "{key} of {name}");
        held.release().await.unwrap();
    }
}

/// Compares the server's own hash functions with fixed values, and checks that the client locks the keys that
/// they compute.
#[tokio::test]
async fn server_side_rules_match_the_server() {
    let world = World::start();
    for (key, call, vector) in [
        ("hashtext", "hashtext", "-557741655"),
        ("hashtextextended", "hashtextextended", "2339883137032620457"),
    ] {
        let arguments = if key == "hashtext" { "" } else { ", 0" };
        let found = world.server.psql(&format!("select {call}('{NAME}'{arguments})"));
        assert_eq!(found.trim(), vector, "{key} of this server's version");
        let held = world.with_key(key).await.mutex(NAME).acquire().await.unwrap();
        let locked = world.server.psql(&format!("select pg_try_advisory_lock({call}('{NAME}'{arguments}))"));
        assert_eq!(locked.trim(), "f", "{key}");
        held.release().await.unwrap();
    }
}

#[tokio::test]
async fn number_and_pair_with_equal_bits_are_two_locks() {
    let world = World::start();
    let locks = world.with_key("raw").await;
    let _pair = locks.mutex("1,2").acquire().await.unwrap();
    let number = ((1_i64 << 32) | 2).to_string();
    let _number = locks.mutex(&number).try_acquire().await.unwrap().expect("it is another lock");
    let listed = locks.list(None).await.unwrap();
    let names: Vec<String> = listed.iter().map(|info| info.name.as_str().to_owned()).collect();
    assert_eq!(names, ["1,2".to_owned(), number]);
    let refused = locks.mutex("orders").acquire().await.unwrap_err().to_string();
    assert!(refused.contains("`orders`") && refused.contains("key=raw"), "{refused}");
}

#[tokio::test]
async fn foreign_locks_are_inspected_but_not_listed() {
    let world = World::start();
    let locks = world.with_key("crc32").await;
    let at = format!("host=127.0.0.1 port={} user=postgres application_name=reporting", world.server.port());
    let (client, connection) = connect(&at, NoTls).await.unwrap();
    let carried = tokio::spawn(connection);
    client.batch_execute("select pg_advisory_lock(763341982)").await.unwrap();
    let shown = locks.inspect(NAME).await.unwrap();
    assert_eq!(shown.holds.len(), 1);
    assert!(shown.holds[0].label.starts_with("reporting (process "), "{}", shown.holds[0].label);
    assert_eq!(shown.holds[0].token, None);
    assert!(locks.list(None).await.unwrap().is_empty(), "its name is not known");
    let lockkeeper::AcquireError::Busy(busy) =
        locks.mutex(NAME).wait(lockkeeper::Wait::No).acquire().await.unwrap_err()
    else {
        panic!("it is held")
    };
    assert!(busy.holder.unwrap().starts_with("reporting"));
    drop(client);
    carried.await.unwrap().unwrap();
    locks.mutex(NAME).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn names_of_any_characters_and_length_are_locked_and_listed() {
    let world = World::start();
    let locks = world.client("owner's \"label\" \\ */").await;
    for name in ["it's/\\/*/*/x", "größe/😀/数", "$$;--", &"x".repeat(512)] {
        let held = locks.mutex(name).meta("k", "v */ 'w' \\").acquire().await.unwrap();
        let listed = locks.list(None).await.unwrap();
        assert_eq!(listed.len(), 1, "{name}");
        assert_eq!(listed[0].name.as_str(), name);
        assert_eq!(listed[0].holds[0].label, "owner's \"label\" \\ */");
        assert_eq!(listed[0].holds[0].token, held.token_hint());
        held.release().await.unwrap();
    }
}
