//! `run --once-key`.

use lockkeeper_cli::exit;
use lockkeeper_rig::{Postgres, Redis};

use crate::support::{CommandExt, Ended, Place, json_file};

/// Appends a line to `done` and ends with `code`.
fn job(place: &Place, options: &[&str], code: u8) -> Ended {
    let script = format!("echo done >> done; exit {code}");
    place.lockkeeper([&["run"], options, &["jobs", "--", "sh", "-c", &script]].concat()).ended()
}

fn times_done(place: &Place) -> usize {
    std::fs::read_to_string(place.path("done")).unwrap_or_default().lines().count()
}

/// Runs a failing command, the same one with success, and then once more, with records at `records`.
fn once(place: &Place, records: &[&str]) {
    let options = [&["--once-key", "2026-11 %/'"], records].concat();
    assert_eq!(job(place, &options, 3).code, 3, "a failure is no outcome");
    let first = job(place, &options, 0);
    assert_eq!((first.code, first.err.as_str()), (0, ""), "{first:?}");
    let again = job(place, &[&options[..], &["--status-file", "status"]].concat(), 0);
    again.is_one_line(exit::OK, &["not run", "done at 20", ": sh"]);
    let status = json_file(&place.path("status"));
    assert_eq!(
        (&status["outcome"], &status["exit_code"]),
        (&"already-done".into(), &serde_json::Value::Null)
    );
    assert_eq!(times_done(place), 2);
    assert_eq!(job(place, &[&["--once-key", "another"], records].concat(), 0).code, 0);
    assert_eq!(times_done(place), 3);
}

#[test]
fn command_is_run_once_per_key_with_records_beside_the_locks() {
    once(&Place::new(), &[]);
}

#[test]
fn records_may_be_elsewhere() {
    let (place, _node) = Place::new().served();
    once(&place, &["--records", &format!("file://{}", place.path("records").display())]);
    let server = Postgres::start();
    let (place, _node) = Place::new().served();
    once(&place, &["--records", &server.url()]);
    let server = Redis::start();
    let (place, _node) = Place::new().served();
    once(&place, &["--records", &server.url()]);
}

#[test]
fn waiter_finds_the_command_done_meanwhile() {
    let place = Place::new();
    let script = "sleep 0.3; echo done >> done";
    let start = || {
        let words = ["run", "--once-key", "K", "jobs", "--", "sh", "-c", script];
        place.lockkeeper(words).started()
    };
    let crowd: Vec<_> = (0..6).map(|_| start()).collect();
    let ended: Vec<_> = crowd.into_iter().map(|one| one.ended()).collect();
    assert!(ended.iter().all(|one| one.code == 0), "{ended:?}");
    assert_eq!(times_done(&place), 1);
    assert_eq!(ended.iter().filter(|one| one.err.contains("not run")).count(), 5, "{ended:?}");
}

#[test]
fn record_that_can_not_be_read_or_written_is_an_error() {
    let place = Place::new();
    std::fs::write(place.path("in-the-way"), "").unwrap();
    let records = format!("file://{}/in-the-way", place.path("").display());
    job(&place, &["--once-key", "K", "--records", &records], 0)
        .is_one_line(exit::UNAVAILABLE, &["the record of `K`", "Not a directory"]);
    assert_eq!(times_done(&place), 0, "the command is not run if its record can't be read");

    // The directory of the records becomes a file while the command runs.
    let script = "rm -rf records/once; mkdir -p records; echo > records/once; echo done >> done";
    let records = format!("file://{}", place.path("records").display());
    let words = ["run", "--once-key", "K", "--records", &records, "jobs", "--", "sh", "-c", script];
    place
        .lockkeeper(words)
        .ended()
        .is_one_line(exit::UNAVAILABLE, &["the command was done", "not recorded", "would run again"]);
    assert_eq!(times_done(&place), 1);
}

#[test]
fn unusable_keys_and_stores_are_refused_before_anything_is_run() {
    let (place, _node) = Place::new().served();
    let long = "x".repeat(513);
    for (options, words) in [
        (&["--once-key", ""][..], &["0 bytes", "512"][..]),
        (&["--once-key", &long], &["513 bytes", "512"]),
        (&["--once-key", "K"], &["--records URL", "file:///dir"]),
        (&["--once-key", "K", "--records", "etcd://host"], &["`etcd:`", "known", "redis://"]),
        (&["--once-key", "K", "--records", "file:dir"], &["file:///dir"]),
        (&["--records", "file:///dir"], &["--once-key"]),
    ] {
        job(&place, options, 0).is_one_line(exit::USAGE, words);
    }
    assert_eq!(times_done(&place), 0);
}
