//! `sessions end`, and `break` of many holds: a list, a confirmation, one call for each.

use std::time::Duration;

use lockkeeper::blocking::Locks;
use lockkeeper_cli::exit::{NO, OK, USAGE};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{CommandExt, TestDir, wait_until};

const HOUR: Duration = Duration::from_secs(3600);
const LOCKS: usize = 250;

impl TestDir {
    fn json(&self, line: &str) -> Value {
        self.ran(line).json()
    }
}

#[test]
fn client_with_250_locks_and_a_long_ttl_is_ended_by_one_command() {
    let (test, node) = TestDir::new().served();
    let locks = Locks::connect_as(&test.url(), "root@web1 pid 7: jobs").unwrap();
    let held: Vec<_> =
        (0..LOCKS).map(|n| locks.mutex(format!("jobs/{n}")).ttl(HOUR).acquire().unwrap()).collect();
    let _other = test.holder("other", &[]);

    let listed = test.json("sessions end --label web1 --dry-run --json");
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!((&listed[0]["requests"], &listed[0]["attached"]), (&json!(LOCKS), &json!(true)));
    let dry = test.ran("sessions end --label web1 --dry-run");
    assert!(dry.err.contains(&format!("1 session(s) with {LOCKS} request(s) would end")), "{dry:?}");
    let unconfirmed = test.ran("sessions end --label web1 --reason dead");
    assert_eq!(unconfirmed.code, i32::from(USAGE));
    assert!(unconfirmed.err.contains("add --yes"), "{unconfirmed:?}");
    for option in ["--label", "--identity"] {
        let blank =
            test.lockkeeper(["sessions", "end", option, "", "--reason", "dead", "--yes", "--now"]).ended();
        assert_eq!(blank.code, i32::from(USAGE), "a variable of a script that is not set: {blank:?}");
    }
    let nobody = test.ran("sessions end --label web --reason dead --yes");
    assert_eq!(nobody.code, i32::from(NO), "a part of a word selects nothing: {nobody:?}");

    let attached = test.ran("sessions end --label web1 --reason dead --yes");
    assert_eq!((attached.code, attached.out.as_str()), (i32::from(NO), "0 ended, 0 gone already, 1 left\n"));
    assert!(attached.err.contains("its client is attached"), "{attached:?}");
    let names = || test.json("ls --json").as_array().unwrap().len();
    assert_eq!(names(), LOCKS + 1);

    let ended = test.ran("sessions end --label web1 --reason dead --by olga --yes --now");
    assert_eq!((ended.code, ended.out.as_str()), (i32::from(OK), "1 ended, 0 gone already, 0 left\n"));
    wait_until("the backlog is done", || names() == 1);
    wait_until("its client has lost all", || held.iter().all(|guard| guard.loss().is_some()));
    let log = node.log();
    for words in ["end-session", "now, by olga", "dead"] {
        assert!(log.contains(words), "no {words:?} in {log}");
    }
}

#[test]
fn session_of_a_killed_client_ends_by_its_id() {
    let (test, _node) = TestDir::new().served();
    let killed = test.holder("x", &["--ttl", "1h"]);
    killed.signal(Signal::SIGKILL);
    let session = || test.json("sessions --json")[0].clone();
    wait_until("its stream has ended", || session()["attached"] == false);
    let id = session()["session"].as_u64().unwrap();
    let ended = test.json(&format!("sessions end {id} 999 --reason killed --yes --json"));
    assert_eq!(ended, json!([{ "session": id, "result": "done" }]), "there is no session 999");
    let again = test.ran(&format!("sessions end {id} --reason killed --yes"));
    assert_eq!(again.code, i32::from(NO), "{again:?}");
    assert_eq!(test.json("sessions --json"), json!([]));
}

#[test]
fn holds_are_broken_by_prefix_and_by_holder() {
    let (test, _node) = TestDir::new().served();
    let locks = Locks::connect_as(&test.url(), "root@web1 pid 7: jobs").unwrap();
    let other = Locks::connect_as(&test.url(), "root@web2 pid 7: jobs").unwrap();
    let above = other.mutex("top").subtree().acquire().unwrap();
    let held: Vec<_> = ["jobs/a", "jobs/b", "jobs/c/d", "jobsx"]
        .iter()
        .map(|name| locks.mutex(*name).acquire().unwrap())
        .collect();
    let kept = other.mutex("jobs/e").acquire().unwrap();

    let dry = test.ran("break --prefix jobs --dry-run");
    assert!(dry.err.contains("hold(s) would be broken"), "{dry:?}");
    let listed = test.json("break --prefix jobs --dry-run --json");
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|hold| hold["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["jobs/a", "jobs/b", "jobs/c/d", "jobs/e"]);
    let unconfirmed = test.ran("break --prefix jobs --reason test");
    assert_eq!(unconfirmed.code, i32::from(USAGE), "{unconfirmed:?}");
    let broken = test.ran("break --prefix jobs --holder web1 --reason test --yes");
    assert_eq!((broken.code, broken.out.as_str()), (i32::from(OK), "3 told to stop, 0 over already\n"));
    wait_until("the three are lost", || held[..3].iter().all(|guard| guard.loss().is_some()));
    assert!([&held[3], &kept, &above].iter().all(|guard| guard.loss().is_none()));
    // A subtree hold from above covers the prefix and is not below it.
    let waits = test.lockkeeper(["run", "top/x", "--", "true"]).spawn().unwrap();
    test.wait_for_waiters("top/x", 1);
    assert_eq!(test.json("break --prefix top/x --dry-run --json"), json!([]));
    above.release().unwrap();
    let mut waits = waits;
    assert!(waits.wait().unwrap().success());
}
