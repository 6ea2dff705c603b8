//! Findings of `doctor` about a server's settings.

use crate::session::world::{World, for_session};

async fn findings(world: &World, more: &str) -> Vec<(bool, String)> {
    let url = format!("{}{more}", world.url());
    let locks = lockkeeper::Locks::connect(&url).await.unwrap();
    locks.findings().await.unwrap().into_iter().map(|found| (found.spoils, found.says)).collect()
}

#[tokio::test]
async fn harmful_settings_are_reported() {
    let world = World::with(&[
        "-c",
        "synchronous_commit=off",
        "-c",
        "max_connections=20",
        "-c",
        "track_activities=off",
    ]);
    let found = findings(&world, "&connections=40").await;
    for (spoils, part) in [
        (false, "synchronous_commit is off"),
        (true, "fsync is off"),
        (true, "max_connections is 20"),
        (true, "track_activities is off"),
    ] {
        assert!(
            found.iter().any(|(spoilt, says)| *spoilt == spoils && says.contains(part)),
            "{part}: {found:?}"
        );
    }
    let found = findings(&world, "").await;
    assert!(found.iter().any(|(spoils, says)| !spoils && says.contains("synchronous_commit")), "{found:?}");
    let named = found.iter().any(|(_, says)| says.contains("max_connections"));
    assert!(named, "64 connections are the default: {found:?}");
}

#[tokio::test]
async fn unkept_promises_are_always_reported() {
    let world = World::start();
    let found = findings(&world, "").await;
    assert!(found.iter().any(|(_, says)| says.contains("P5")), "{found:?}");

    world.server.psql("drop schema lockkeeper cascade; create role app login");
    let app = for_session(&world.server.url_as("app"));
    let locks = lockkeeper::Locks::connect(&app).await.unwrap();
    let found = locks.findings().await.unwrap();
    let says = |part: &str| found.iter().any(|found| found.says.contains(part));
    assert!(says("no fencing tokens") && says("pg_read_all_stats"), "{found:?}");
}
