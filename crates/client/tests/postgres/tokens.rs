//! The sequence of tokens: what it takes, what spoils it, and that it only rises.

use lockkeeper::backends::postgres::init;
use lockkeeper::{AcquireError, ConnectError, Locks, TokenStatus};
use lockkeeper_rig::Postgres;

use crate::world::{KINDS, World, with_kind};

fn why_not(locks: Locks) -> String {
    locks.fenced().err().expect("it gives no tokens").to_string()
}

#[tokio::test]
async fn without_the_schema_there_are_locks_without_tokens() {
    for kind in KINDS {
        let server = Postgres::start();
        let url = with_kind(&server.url(), kind);
        let locks = Locks::connect(&url).await.unwrap();
        let held = locks.mutex("a").acquire().await.unwrap();
        assert_eq!(held.token_hint(), None);
        let shown = locks.inspect(&"a".parse().unwrap()).await.unwrap();
        assert_eq!((shown.holders.len(), shown.holders[0].token), (1, None));
        held.verify().await.unwrap();
        held.release().await.unwrap();
        let why = why_not(locks);
        assert!(why.contains("no sequence `lockkeeper.token`") && why.contains("postgres init"), "{why}");

        // And once it is there, a new client has tokens.
        init(&server.url(), None).await.unwrap();
        let fenced = Locks::connect(&url).await.unwrap().fenced().unwrap();
        fenced.mutex("a").acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_role_with_the_documented_rights_is_enough_and_one_without_is_told() {
    for kind in KINDS {
        let server = Postgres::start();
        server.psql("create role app login; create role stranger login");
        let as_app = init(&server.url_as("app"), None).await;
        let Err(ConnectError::Backend(error)) = as_app else { panic!("{kind}: {as_app:?}") };
        assert!(error.to_string().contains("may create schemas"), "{error}");

        init(&server.url(), Some("app")).await.unwrap();
        let app = Locks::connect(&with_kind(&server.url_as("app"), kind)).await.unwrap();
        let fenced = app.clone().fenced().unwrap();
        let held = fenced.mutex("a").acquire().await.unwrap();
        let name = "a".parse().unwrap();
        let status = app.check_token(&name, held.token().get()).await.unwrap();
        assert_eq!(status, TokenStatus::Current, "{kind}");
        held.release().await.unwrap();

        let stranger = Locks::connect(&with_kind(&server.url_as("stranger"), kind)).await.unwrap();
        stranger.mutex("a").acquire().await.unwrap().release().await.unwrap();
        let why = why_not(stranger);
        assert!(why.contains("may not use the sequence") && why.contains("--role"), "{why}");

        // Taken away later, it is an error and not a lock without a token.
        server.psql("revoke all on sequence lockkeeper.token from app");
        let refused = app.mutex("a").acquire().await.unwrap_err();
        assert!(
            matches!(&refused, AcquireError::Backend(error) if error.to_string().contains("permission denied")),
            "{refused}"
        );
        server.psql("grant usage, select on sequence lockkeeper.token to app");
        app.mutex("a").acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_sequence_that_would_not_rise_is_refused() {
    for (change, says) in [
        ("cache 10", "a cache above 1"),
        ("increment by -1", "does not rise by 1"),
        ("cycle", "begins again at its end"),
    ] {
        let world = World::start();
        world.server.psql(&format!("alter sequence lockkeeper.token {change}"));
        let why = why_not(world.client("session", "asks").await);
        assert!(why.contains(says) && why.contains("alter sequence"), "{change}: {why}");
    }
}

#[tokio::test]
async fn init_begins_at_the_clock_and_never_sets_tokens_back() {
    let server = Postgres::start();
    let last = || -> u64 { server.psql("select last_value from lockkeeper.token").trim().parse().unwrap() };
    init(&server.url(), None).await.unwrap();
    let first = last();
    let year = 365 * 24 * 3600 * 1_000_000_u64;
    assert!((year / 2..1 << 53).contains(&first), "{first} is not about the microseconds since 2026");
    server.psql("select setval('lockkeeper.token', 9007199254740000)");
    init(&server.url(), None).await.unwrap();
    assert_eq!(last(), 9_007_199_254_740_000);
    // As after a restored backup.
    server.psql("select setval('lockkeeper.token', 7)");
    init(&server.url(), None).await.unwrap();
    assert!(last() >= first, "{} after {first}", last());
}

/// `if not exists` would keep it, with whatever it does to who uses it.
#[tokio::test]
async fn init_does_not_build_on_what_another_role_has_made() {
    for trap in [
        "create schema lockkeeper authorization other",
        "create schema lockkeeper; create table lockkeeper.row_lease (); alter table lockkeeper.row_lease owner to other",
        "create schema lockkeeper; create sequence lockkeeper.token; alter sequence lockkeeper.token owner to other",
        "create schema lockkeeper; create function lockkeeper.f() returns int language sql as 'select 1'; \
         alter function lockkeeper.f() owner to other",
    ] {
        let server = Postgres::start();
        server.psql("create role other login; grant create on database postgres to other");
        server.psql(trap);
        let error = init(&server.url(), None).await.expect_err(trap).to_string();
        assert!(error.contains("belongs to the role other and not to postgres"), "{error}");
        // Who owns it all may run it, as often as he likes.
        server.psql("drop schema lockkeeper cascade");
        for _ in 0..2 {
            init(&server.url_as("other"), None).await.unwrap();
        }
    }
}

#[tokio::test]
async fn tokens_are_checked_and_never_below_those_before() {
    for kind in KINDS {
        let world = World::start();
        let (one, two) = (world.client(kind, "one").await, world.client(kind, "two").await);
        let name = "a".parse().unwrap();
        let mut last = None;
        for round in 0..10 {
            let locks = if round % 2 == 0 { &one } else { &two };
            let held = locks.mutex(&name).acquire().await.unwrap();
            assert!(held.token_hint() > last, "{kind}");
            last = held.token_hint();
            held.release().await.unwrap();
        }
        let reader = one.rw(&name).read().acquire().await.unwrap();
        let another = two.rw(&name).read().acquire().await.unwrap();
        let (old, live) = (last.unwrap(), vec![reader.token_hint().unwrap(), another.token_hint().unwrap()]);
        assert_eq!(one.check_token(&name, live[0].get()).await.unwrap(), TokenStatus::Current);
        assert_eq!(
            one.check_token(&name, old.get()).await.unwrap(),
            TokenStatus::NotCurrent { live: live.clone() }
        );
        let above = live[1].get() + 1;
        assert_eq!(one.check_token(&name, above).await.unwrap(), TokenStatus::NeverIssued);
    }
}
