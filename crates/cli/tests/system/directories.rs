//! The lock directory of a host, if none is named. Each case sees a `/var/lib` of its own, by a mount
//! namespace.

use std::process::Command;

use lockkeeper_cli::exit;

use crate::support::{CommandExt, Ended, Place};

/// Runs the script with an empty `/var/lib`; `$0` is the program.
fn ran(place: &Place, script: &str) -> Ended {
    let mut shell = Command::new("unshare");
    let script = format!("set -e; mount -t tmpfs lib /var/lib; {script}");
    shell.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_lockkeeper")]);
    shell.current_dir(place.path("")).env("HOME", place.path("home")).env_remove("LOCKKEEPER_URL");
    shell.env_remove("XDG_STATE_HOME").ended()
}

#[test]
fn own_directory_is_said_once_and_the_shared_one_goes_first() {
    let place = Place::new();
    let ended = ran(&place, "\"$0\" run x -- true; echo again >&2; \"$0\" run x -- true");
    assert_eq!(ended.code, 0, "{ended:?}");
    let (first, again) = ended.err.split_once("again\n").unwrap();
    assert!(first.contains("home/.local/state/lockkeeper, for this user on this host only"), "{first}");
    assert_eq!((first.lines().count(), again), (1, ""));
    assert!(place.path("home/.local/state/lockkeeper").is_dir());

    let script = "install -d -m 1777 /var/lib/lockkeeper; \"$0\" run x -- ls /var/lib/lockkeeper/locks";
    let ended = ran(&place, script);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert!(ended.out.contains("x.hold"), "{}", ended.out);
    let elsewhere = place.path("a %?b");
    let script = format!("XDG_STATE_HOME='{}' \"$0\" run --local x -- true", elsewhere.display());
    ran(&place, &script).is_silent_success();
    assert!(elsewhere.join("lockkeeper").is_dir());
}

#[test]
fn shared_directory_that_cannot_be_used_is_an_error() {
    let place = Place::new();
    for (prepare, why) in [
        ("ln -s /nowhere /var/lib/lockkeeper", "No such file"),
        ("touch /var/lib/lockkeeper", "Not a directory"),
        ("mkdir /var/lib/lockkeeper; mount -t tmpfs -o ro locks /var/lib/lockkeeper", "Read-only"),
    ] {
        let ended = ran(&place, &format!("{prepare}; exec \"$0\" run x -- touch it-ran"));
        ended.is_one_line(exit::PERMISSION, &["/var/lib/lockkeeper", why, "--locks file:///dir"]);
    }
    assert!(!place.path("it-ran").exists());
}

#[test]
fn root_without_a_home_of_its_own_makes_the_shared_directory() {
    let place = Place::new();
    std::fs::create_dir(place.path("home")).unwrap();
    std::os::unix::fs::chown(place.path("home"), Some(12_345), None).unwrap();
    for before in ["unset HOME;", ""] {
        let ended = ran(&place, &format!("{before} \"$0\" run x -- stat -c %a /var/lib/lockkeeper"));
        assert_eq!((ended.code, ended.out.as_str()), (0, "1777\n"), "{ended:?}");
        assert!(ended.err.contains("/var/lib/lockkeeper, for everyone who may write there"), "{}", ended.err);
    }
    assert!(!place.path("home/.local").exists(), "not root's files in the home of another user");
}

#[test]
fn user_without_a_home_or_without_rights_in_the_shared_directory_is_refused() {
    let place = Place::new();
    let as_user =
        "cp \"$0\" /var/lib/program; cd /; exec setpriv --reuid=12345 --regid=12345 --clear-groups env";
    for home in ["-u HOME", "HOME=relative"] {
        let ended = ran(&place, &format!("{as_user} {home} /var/lib/program run x -- true"));
        ended.is_one_line(exit::CONFIG, &["HOME", "--locks file:///dir"]);
    }
    let script =
        format!("mkdir -m 0750 /var/lib/lockkeeper; {as_user} HOME=/tmp /var/lib/program run x -- true");
    ran(&place, &script)
        .is_one_line(exit::PERMISSION, &["12345 can't use", "Permission denied", "chmod 1777"]);
}
