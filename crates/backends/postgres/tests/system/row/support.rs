//! A database with the schema for lease rows, and an audit of its grants.

use std::time::Duration;

use lockkeeper::{BreakOrder, Guard, HolderInfo, LockInfo, LockName, Locks, Unfenced};
pub(crate) use lockkeeper_contract::{until, until_waiting};
use lockkeeper_rig::Postgres;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A server whose database `postgres` has the schema.
pub(crate) fn server() -> Postgres {
    let server = Postgres::start();
    init(&server);
    server
}

pub(crate) fn init(server: &Postgres) {
    server.psql(&lockkeeper::backends::postgres::schema_sql(None));
}

pub(crate) async fn client(url: &str, label: &str) -> Locks {
    Locks::connect_as(&rows(url), label).await.unwrap()
}

/// The server's URL with the query for lease rows.
pub(crate) fn rows(url: &str) -> String {
    format!("{url}?lock=row&connections=4")
}

pub(crate) async fn inspect(locks: &Locks, name: &str) -> LockInfo {
    locks.inspect(&name.parse::<LockName>().unwrap()).await.unwrap()
}

/// The only holder of a lock.
pub(crate) async fn holder(locks: &Locks, name: &str) -> HolderInfo {
    let mut info = inspect(locks, name).await;
    assert_eq!(info.holds.len(), 1, "{info:?}");
    info.holds.remove(0)
}

pub(crate) fn order(name: &str, held: &Guard<Unfenced>, now: bool) -> BreakOrder {
    BreakOrder {
        name: name.parse().unwrap(),
        token: held.token_hint().unwrap(),
        reason: "the disk is full".into(),
        by: "operator".into(),
        now,
    }
}

pub(crate) fn token(held: &Guard<Unfenced>) -> u64 {
    held.token_hint().unwrap().get()
}

/// Installs a trigger that records each grant, and each grant that conflicted with a hold at that time. The
/// trigger runs while the row is locked, so it records the grants in their order.
pub(crate) fn audit(server: &Postgres) {
    server.psql(
        "CREATE TABLE grants (at bigint GENERATED ALWAYS AS IDENTITY, name text, slot int, token bigint);
         CREATE TABLE double_holds (name text, old bigint, new bigint);
         CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.id IS NULL OR TG_OP = 'UPDATE' AND NEW.token = OLD.token THEN
                 RETURN NULL;
             END IF;
             INSERT INTO public.grants (name, slot, token) VALUES (NEW.name, NEW.slot, NEW.token);
             IF TG_OP = 'UPDATE' AND OLD.held_until > NEW.since THEN
                 INSERT INTO public.double_holds VALUES (NEW.name, OLD.token, NEW.token);
             END IF;
             INSERT INTO public.double_holds SELECT NEW.name, l.token, NEW.token FROM lockkeeper.row_lease l
                 WHERE l.name = NEW.name AND l.slot <> NEW.slot AND l.held_until > NEW.since
                     AND NOT (l.permit AND NEW.permit);
             RETURN NULL;
         END $$;
         CREATE TRIGGER audit AFTER INSERT OR UPDATE ON lockkeeper.row_lease FOR EACH ROW EXECUTE FUNCTION audit();",
    );
}

/// Returns the number of recorded grants. Checks that each had a higher token than the one before for the
/// same name, and that none conflicted with a hold.
pub(crate) fn audited_grants(server: &Postgres) -> usize {
    assert_eq!(server.psql("SELECT * FROM double_holds"), "", "held twice");
    let unordered = "SELECT * FROM (SELECT name, token, lag(token) OVER (PARTITION BY name ORDER BY at) AS before \
                     FROM grants) g WHERE token <= before";
    assert_eq!(server.psql(unordered), "", "a token did not rise");
    server.psql("SELECT count(*) FROM grants").parse().unwrap()
}
