//! The examples that write to a database.

use lockkeeper_rig::{Postgres, Redis};

use crate::service::Service;
use crate::{at_once, count, fails};

#[test]
fn payment_charges_once_with_many_workers_and_after_a_crash() {
    let program = env!("CARGO_BIN_EXE_payment");
    let (service, postgres) = (Service::start(), Postgres::start());
    let (locks, database) = (service.url(), postgres.url());
    let one = vec![locks.as_str(), &database, "order-1", "1999"];
    // A first run alone creates the tables.
    let first = at_once(program, std::slice::from_ref(&one));
    let told = at_once(program, &vec![one; 5]);
    assert!(told.iter().all(|line| *line == first[0]), "one receipt for all: {told:#?}");
    let two = vec![locks.as_str(), database.as_str(), "order-2", "500"];
    let told = at_once(program, &vec![two; 5]);
    assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "one receipt for all: {told:#?}");
    assert_eq!(postgres.psql("SELECT count(*) FROM provider"), "2");

    // The state left by a worker that died after the charge, before it stored the receipt.
    postgres.psql(
        "INSERT INTO payments (order_id, key, fence) VALUES ('order-3', 'key-of-the-first', 1);
         INSERT INTO provider VALUES ('key-of-the-first', 700, 'the-receipt')",
    );
    let told = at_once(program, &[vec![&locks, &database, "order-3", "700"]]);
    assert_eq!(told, ["order-3 is paid: the-receipt"]);
    assert_eq!(postgres.psql("SELECT count(*) FROM provider"), "3", "no second charge");

    postgres.psql("UPDATE payments SET receipt = NULL, fence = 9007199254740991 WHERE order_id = 'order-1'");
    let why = fails(program, &[&locks, &database, "order-1", "1999"]);
    assert!(why.contains("later worker"), "{why}");
}

#[test]
fn ledger_never_overdraws_an_account() {
    let program = env!("CARGO_BIN_EXE_ledger");
    let (service, postgres) = (Service::start(), Postgres::start());
    postgres.psql(
        "CREATE TABLE accounts (id text PRIMARY KEY, cents bigint NOT NULL, fence bigint NOT NULL DEFAULT 0);
         CREATE TABLE entries (account text NOT NULL, cents bigint NOT NULL, token bigint NOT NULL);
         INSERT INTO accounts VALUES ('alice', 1000)",
    );
    let (locks, database) = (service.url(), postgres.url());
    let told = at_once(program, &vec![vec![locks.as_str(), &database, "alice", "300"]; 6]);
    assert_eq!((count(&told, "withdrew"), count(&told, "refused")), (3, 3), "{told:#?}");
    assert_eq!(postgres.psql("SELECT cents FROM accounts"), "100");
    assert_eq!(postgres.psql("SELECT sum(cents) FROM entries"), "-900");

    postgres.psql("UPDATE accounts SET cents = 1000, fence = 9007199254740991");
    let why = fails(program, &[&locks, &database, "alice", "300"]);
    assert!(why.contains("stale"), "{why}");
    assert_eq!(postgres.psql("SELECT cents FROM accounts"), "1000");
}

#[test]
fn driver_assignment_gives_each_driver_at_most_one_ride() {
    let program = env!("CARGO_BIN_EXE_driver_assignment");
    let (service, postgres) = (Service::start(), Postgres::start());
    postgres.psql(
        "CREATE TABLE drivers (id bigint PRIMARY KEY, ride text, fence bigint NOT NULL DEFAULT 0);
         INSERT INTO drivers SELECT generate_series(1, 4)",
    );
    let (locks, database) = (service.url(), postgres.url());
    let rides: Vec<String> = (0..7).map(|number| format!("ride-{number}")).collect();
    let lines: Vec<_> = rides.iter().map(|ride| vec![locks.as_str(), &database, ride.as_str()]).collect();
    let told = at_once(program, &lines);
    let refused = told.iter().filter(|line| line.ends_with("no driver is free")).count();
    assert_eq!(refused, 3, "{told:#?}");
    for line in told.iter().filter(|line| !line.ends_with("no driver is free")) {
        let (ride, driver) = line.split_once(" goes to driver ").unwrap_or_else(|| panic!("{told:#?}"));
        let kept = postgres.psql(&format!("SELECT ride FROM drivers WHERE id = {driver}"));
        assert_eq!(kept, ride, "what was told stands: {told:#?}");
    }
}

#[test]
fn cache_stampede_computes_once_and_works_without_its_lock() {
    let program = env!("CARGO_BIN_EXE_cache_stampede");
    let redis = Redis::start();
    let url = redis.url();
    let told = at_once(program, &vec![vec![url.as_str(), &url, "front-page"]; 8]);
    assert_eq!(count(&told, "computed"), 1, "{told:#?}");
    assert_eq!(count(&told, "waited") + count(&told, "from the cache"), 7, "{told:#?}");
    assert!(told.iter().all(|line| line.ends_with("front-page, computed 1 times so far")), "{told:#?}");
    assert_eq!(redis.cli(&["GET", "computed/front-page"]), "1");
    let told = at_once(program, &[vec![url.as_str(), &url, "front-page"]]);
    assert_eq!(count(&told, "from the cache"), 1, "{told:?}");

    let locks = Redis::start();
    let gone = locks.url();
    locks.kill();
    let told = at_once(program, &[vec![gone.as_str(), &url, "other-page"]]);
    assert_eq!(told, ["computed: other-page, computed 1 times so far"]);
}

/// The program checks its counts itself, under a lock and without one.
#[test]
fn alternatives_to_a_lock_lose_nothing_either() {
    let program = env!("CARGO_BIN_EXE_alternatives");
    let (service, postgres) = (Service::start(), Postgres::start());
    let outputs = at_once(program, &[vec![&postgres.url(), &service.url(), "4", "30"]]);
    for way in ["statement", "forupdate", "version", "key", "queue", "owner"] {
        assert!(outputs[0].lines().any(|line| line.starts_with(&format!("{way}: "))), "{outputs:?}");
    }
}
