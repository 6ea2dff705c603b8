//! The lock directory of a host, if none is named. Each case sees a `/var/lib` of its own, by a mount
//! namespace.

use std::process::Command;

use lockkeeper_cli::exit;

use crate::support::{CommandExt, Ended, TestDir};

/// Runs the script with an empty `/var/lib`; `$0` is the program.
fn ran(test: &TestDir, script: &str) -> Ended {
    let mut shell = Command::new("unshare");
    let script = format!("set -e; mount -t tmpfs lib /var/lib; {script}");
    shell.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_lockkeeper")]);
    shell.current_dir(test.path("")).env("HOME", test.path("home")).env_remove("LOCKKEEPER_URL");
    shell.env_remove("XDG_STATE_HOME").ended()
}

#[test]
fn own_directory_is_said_once_and_the_shared_one_goes_first() {
    let test = TestDir::new();
    let ended = ran(&test, "\"$0\" run x -- true; echo again >&2; \"$0\" run x -- true");
    assert_eq!(ended.code, 0, "{ended:?}");
    let (first, again) = ended.err.split_once("again\n").unwrap();
    assert!(first.contains("home/.local/state/lockkeeper, for this user on this host only"), "{first}");
    assert_eq!((first.lines().count(), again), (1, ""));
    assert!(test.path("home/.local/state/lockkeeper").is_dir());

    let script = "install -d -m 1777 /var/lib/lockkeeper; \"$0\" run x -- ls /var/lib/lockkeeper/locks";
    let ended = ran(&test, script);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert!(ended.out.contains("x.hold"), "{}", ended.out);
    let elsewhere = test.path("a %?b");
    let script = format!("XDG_STATE_HOME='{}' \"$0\" run --local x -- true", elsewhere.display());
    ran(&test, &script).is_silent_success();
    assert!(elsewhere.join("lockkeeper").is_dir());
}

#[test]
fn shared_directory_that_cannot_be_used_is_an_error() {
    let test = TestDir::new();
    for (prepare, why) in [
        ("ln -s /nowhere /var/lib/lockkeeper", "No such file"),
        ("touch /var/lib/lockkeeper", "Not a directory"),
        ("mkdir /var/lib/lockkeeper; mount -t tmpfs -o ro locks /var/lib/lockkeeper", "Read-only"),
    ] {
        let ended = ran(&test, &format!("{prepare}; exec \"$0\" run x -- touch it-ran"));
        ended.is_one_line(exit::PERMISSION, &["/var/lib/lockkeeper", why, "--locks file:///dir"]);
    }
    assert!(!test.path("it-ran").exists());
}

#[test]
fn root_without_a_home_of_its_own_makes_the_shared_directory() {
    let test = TestDir::new();
    std::fs::create_dir(test.path("home")).unwrap();
    std::os::unix::fs::chown(test.path("home"), Some(12_345), None).unwrap();
    for before in ["unset HOME;", ""] {
        let ended = ran(&test, &format!("{before} \"$0\" run x -- stat -c %a /var/lib/lockkeeper"));
        assert_eq!((ended.code, ended.out.as_str()), (0, "1777\n"), "{ended:?}");
        assert!(ended.err.contains("/var/lib/lockkeeper, for everyone who may write there"), "{}", ended.err);
    }
    assert!(!test.path("home/.local").exists(), "not root's files in the home of another user");
}

#[test]
fn user_without_a_home_or_without_rights_in_the_shared_directory_is_refused() {
    let test = TestDir::new();
    let as_user =
        "cp \"$0\" /var/lib/program; cd /; exec setpriv --reuid=12345 --regid=12345 --clear-groups env";
    for home in ["-u HOME", "HOME=relative"] {
        let ended = ran(&test, &format!("{as_user} {home} /var/lib/program run x -- true"));
        ended.is_one_line(exit::CONFIG, &["HOME", "--locks file:///dir"]);
    }
    let script =
        format!("mkdir -m 0750 /var/lib/lockkeeper; {as_user} HOME=/tmp /var/lib/program run x -- true");
    ran(&test, &script)
        .is_one_line(exit::PERMISSION, &["12345 can't use", "Permission denied", "chmod 1777"]);
}
