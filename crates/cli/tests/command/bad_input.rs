//! Invalid input is reported on one line with the value, the limit and the remedy, and with a documented exit
//! code; nothing is executed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use lockkeeper_cli::exit;

use crate::support::{CommandExt, TestDir};

/// Asserts that `run` with this name fails before the command starts.
#[track_caller]
fn bad_name(name: &OsStr, words: &[&str]) {
    let test = TestDir::new();
    let command = ["run"].map(OsString::from).into_iter().chain([name.to_owned()]);
    let command = command.chain(["--", "touch", "it-ran"].map(OsString::from));
    test.lockkeeper(command).ended().is_one_line(exit::USAGE, words);
    assert!(!test.path("it-ran").exists());
}

#[test]
fn invalid_lock_names_are_refused() {
    bad_name(OsStr::new(""), &["name is empty", "1 to 512 bytes"]);
    bad_name(OsStr::new(&"a".repeat(513)), &["513 bytes", "at most 512"]);
    bad_name(OsStr::new("a//b"), &["\"a//b\"", "empty segment at byte 2"]);
    bad_name(OsStr::new("/a"), &["empty segment"]);
    bad_name(OsStr::new("a\nb"), &["U+000A"]);
    bad_name(OsStr::from_bytes(b"a\xffb"), &["not UTF-8", "byte 1"]);
}

/// A NUL in an argument never reaches the program, since arguments are C strings: starting the process fails.
#[test]
fn nul_in_an_argument_is_refused_at_spawn() {
    let test = TestDir::new();
    let refused = test.lockkeeper(["show", "a\0b"]).spawn().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn every_command_refuses_invalid_lock_names() {
    for line in
        ["show a//b", "ls a//b", "watch a//b", "check-token a//b 7", "break a//b --token 7 --reason x"]
    {
        TestDir::new().ran(line).is_one_line(exit::USAGE, &["\"a//b\"", "empty segment"]);
    }
}

#[test]
fn durations_out_of_range_or_without_a_unit_are_refused() {
    for (options, words) in [
        ("--ttl 0s", &["--ttl", "'0s'", "1s to 1h"][..]),
        ("--ttl 1ms", &["--ttl", "'1ms'", "1s to 1h"]),
        ("--ttl 10years", &["--ttl", "'10years'", "1s to 1h"]),
        ("--ttl 9s", &["--ttl", "`file`", "no"]),
        ("--ttl 5", &["--ttl", "'5'", "5s"]),
        ("--wait soon", &["--wait", "'soon'", "5s"]),
        ("--keep-closed 25h", &["--keep-closed", "'25h'", "at most 24h"]),
        ("--lock-delay 2h", &["--lock-delay", "'2h'", "at most 1h"]),
    ] {
        let test = TestDir::new();
        test.ran(&format!("run {options} x -- touch it-ran")).is_one_line(exit::USAGE, words);
        assert!(!test.path("it-ran").exists(), "{options}");
    }
}

#[test]
fn grace_above_half_the_ttl_is_refused() {
    let ended = TestDir::new().ran("run --locks memory: --ttl 2s --grace 1500ms x -- true");
    ended.is_one_line(exit::USAGE, &["--grace is 1.5s", "half the ttl (1s)", "longer --ttl"]);
}

#[test]
fn invalid_or_mismatched_permit_limits_are_refused() {
    let test = TestDir::new();
    test.ran("run --permit=0 x -- true").is_one_line(exit::USAGE, &["0 permits", "1 to 65536"]);
    test.ran("run --permit=65537 x -- true").is_one_line(exit::USAGE, &["65537", "1 to 65536"]);
    test.ran("run --permit x -- true").is_one_line(exit::USAGE, &["`x`", "say how many permits"]);
    let _holder = test.holder("gpu", &["--permit=2"]);
    test.ran("run --permit=3 gpu -- true").is_one_line(exit::USAGE, &["gpu", "3", "2"]);
}

#[test]
fn commands_that_cannot_be_executed_are_refused() {
    let test = TestDir::new();
    test.ran("run x").is_one_line(exit::USAGE, &["no command", "`--`"]);
    test.ran("run x --").is_one_line(exit::USAGE, &["no command", "`--`"]);
    test.ran("run x true").is_one_line(exit::USAGE, &["'true'", "behind `--`"]);
    test.ran("run x -- no-such-program")
        .is_one_line(exit::NOT_FOUND, &["`no-such-program`", "not found", "PATH"]);
    std::fs::write(test.path("data"), "text").unwrap();
    test.ran("run x -- ./data")
        .is_one_line(exit::NOT_EXECUTABLE, &["`./data`", "not executable", "permissions"]);
    assert_eq!(test.shown("x")["holds"].as_array().unwrap().len(), 0, "released all the same");
}

#[test]
fn invalid_urls_are_refused() {
    let test = TestDir::new();
    for (url, words) in [
        ("fil:///x", &["`fil:`", "did you mean `file:`"][..]),
        ("nonsense", &["`nonsense`", "scheme", "file:///dir"]),
        ("file:///tmp/x?fuze=allow", &["`fuze`", "did you mean `fuse`"]),
        ("file://host/x", &["host", "three slashes"]),
    ] {
        test.ran(&format!("run --locks {url} x -- true")).is_one_line(exit::USAGE, words);
    }
}

#[test]
fn unusable_lock_directories_are_refused() {
    let test = TestDir::new();
    std::fs::write(test.path("file"), "").unwrap();
    let url = |name: &str| format!("ls --locks file://{}", test.path(name).display());
    test.ran(&url("file/locks")).is_one_line(exit::CANNOT_CREATE, &["file/locks"]);
    test.ran("ls --locks file:///proc/no-locks").is_one_line(exit::CANNOT_CREATE, &["/proc/no-locks"]);
    std::fs::create_dir(test.path("newer")).unwrap();
    std::fs::write(test.path("newer/FORMAT"), "lockkeeper-file 99\n").unwrap();
    test.ran(&url("newer")).is_one_line(exit::IO, &["newer", "99"]);
}

/// `/sys` refuses `mkdir` even to root, so this test also works if root runs it.
#[test]
fn lock_directory_without_permission_is_refused() {
    TestDir::new()
        .ran("run --locks file:///sys/locks x -- true")
        .is_one_line(exit::PERMISSION, &["/sys/locks"]);
}

#[test]
fn invalid_arguments_are_refused() {
    let test = TestDir::new();
    test.ran("nonsense").is_one_line(exit::USAGE, &["'nonsense'"]);
    test.ran("show").is_one_line(exit::USAGE, &["<NAME>"]);
    test.ran("run --busy-exit 256 x -- true").is_one_line(exit::USAGE, &["256", "255"]);
    test.ran("run --meta nonsense x -- true").is_one_line(exit::USAGE, &["nonsense", "KEY=VALUE"]);
    test.ran("run --try --wait 5s x -- true").is_one_line(exit::USAGE, &["--wait", "--try"]);
    test.ran("check-token x 1.5").is_one_line(exit::USAGE, &["1.5"]);
    test.ran("break x --token 0 --reason y")
        .is_one_line(exit::USAGE, &["`0` is not a fencing token", "1 to 9007199254740991"]);
    test.ran("bench --clients 0").is_one_line(exit::USAGE, &["0", "1.."]);
}

#[test]
fn unwritable_status_file_is_reported_before_the_command_runs() {
    let test = TestDir::new();
    let ended = test.ran("run --status-file no/such/dir/s.json x -- touch it-ran");
    ended.is_one_line(exit::CANNOT_CREATE, &["no/such/dir/s.json"]);
    assert!(!test.path("it-ran").exists());
}

/// Of a command line that is wrong, and of a command that fails.
#[test]
fn errors_are_json_if_the_data_are() {
    let test = TestDir::new();
    test.ran("ls --jsn --json").is_json_error(exit::USAGE, &["--jsn"]);
    test.ran("ls --json --locks nowhere://x").is_json_error(exit::USAGE, &["nowhere"]);
    let of_the_job = test.ran("run a --locks nowhere://x -- echo --json");
    of_the_job.is_one_line(exit::USAGE, &["nowhere"]);
}

/// Other users of the machine can read the arguments of a process.
#[test]
fn password_in_the_arguments_is_warned_of() {
    const WARNING: &str = "the password in the arguments can be seen by other users";
    const URL: &str = "redis://:hunter2@127.0.0.1:1";
    let test = TestDir::new();
    let warned = |words: &[&str]| {
        let ended = test.bare(words).ended();
        assert!(!ended.err.contains("hunter2"), "{ended:?}");
        ended.err.matches(WARNING).count()
    };
    assert_eq!(warned(&["ls", "--locks", URL]), 1);
    assert_eq!(warned(&["ls", &format!("--locks={URL}")]), 1);
    assert_eq!(warned(&["doctor", URL]), 1);
    assert_eq!(warned(&["ls", "--locks", "redis://127.0.0.1:1?password-env=NO_SUCH_VARIABLE"]), 0);
    assert_eq!(warned(&["run", "--local", "a", "--", "true", URL]), 0, "not ours");
    let in_variable = test.bare(["ls"]).env("LOCKKEEPER_URL", URL).ended();
    assert!(!in_variable.err.contains(WARNING), "{in_variable:?}");
}
