//! `run` while it holds the lock: the command's environment, input, signals, exit code; the status file.

use std::os::unix::fs::PermissionsExt;

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{CommandExt, TestDir, json_file, wait_until};

#[test]
fn exit_code_of_the_command_is_returned() {
    let test = TestDir::new();
    for code in [0, 1, 42, 255] {
        let ended = test.lockkeeper(["run", "x", "--", "sh", "-c", &format!("exit {code}")]).ended();
        assert_eq!((ended.code, ended.err.as_str()), (code, ""));
    }
    assert_eq!(test.lockkeeper(["run", "x", "--", "sh", "-c", "kill -KILL $$"]).ended().code, 128 + 9);
}

#[test]
fn name_token_and_slot_are_in_the_environment() {
    let test = TestDir::new();
    let print = "echo $LOCKKEEPER_NAME ${LOCKKEEPER_TOKEN-none} ${LOCKKEEPER_SLOT-none}";
    let words = |ended: crate::support::Ended| -> Vec<String> {
        assert_eq!((ended.code, ended.err.as_str()), (0, ""));
        ended.out.split_whitespace().map(str::to_owned).collect()
    };
    let first = words(test.lockkeeper(["run", "orders/42", "--", "sh", "-c", print]).ended());
    assert_eq!((first[0].as_str(), first[2].as_str()), ("orders/42", "none"));
    let second = words(test.lockkeeper(["run", "orders/42", "--", "sh", "-c", print]).ended());
    assert!(second[1].parse::<u64>().unwrap() > first[1].parse().unwrap(), "tokens rise (P2)");
    let permit = words(test.lockkeeper(["run", "--permit", "3", "gpu", "--", "sh", "-c", print]).ended());
    assert_eq!(permit[2], "0");
    // The variables in the wrapper's own environment belong to another hold, so they are replaced or removed.
    let mut nested = test.lockkeeper(["run", "x", "--", "sh", "-c", print]);
    assert_eq!(words(nested.env("LOCKKEEPER_SLOT", "7").env("LOCKKEEPER_NAME", "outer").ended())[2], "none");
}

#[test]
fn standard_input_and_output_are_passed_through() {
    let test = TestDir::new();
    let ended = test.lockkeeper(["run", "x", "--", "cat"]).fed(b"hello\n");
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (0, "hello\n", ""));
}

#[test]
fn signals_are_relayed_to_the_command() {
    let test = TestDir::new();
    let script = "trap 'exit 9' TERM; trap 'touch usr1' USR1; touch ready; while :; do sleep 0.05; done";
    let running = test.lockkeeper(["run", "x", "--", "sh", "-c", script]).started();
    wait_until("the command is ready", || test.path("ready").exists());
    running.signal(Signal::SIGUSR1);
    wait_until("it had SIGUSR1", || test.path("usr1").exists());
    running.signal(Signal::SIGTERM);
    assert_eq!(running.ended().code, 9);
}

#[test]
fn exit_code_is_128_plus_the_signal_that_ended_the_command() {
    let test = TestDir::new();
    let holder = test.holder("x", &["--status-file", "s.json"]);
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.ended().code, 143);
    let status = json_file(&test.path("s.json"));
    assert_eq!((&status["outcome"], &status["signal"]), (&json!("ran"), &json!(15)));
    assert_eq!((&status["exit_code"], &status["exit"]), (&Value::Null, &json!(143)));
}

#[test]
fn status_file_distinguishes_the_commands_exit_code_from_ours() {
    let test = TestDir::new();
    let ended = test.lockkeeper(["run", "--status-file", "s.json", "x", "--", "sh", "-c", "exit 75"]).ended();
    assert_eq!(ended.code, 75);
    let status = json_file(&test.path("s.json"));
    assert_eq!((&status["outcome"], &status["exit_code"]), (&json!("ran"), &json!(75)));
    assert!(status["token"].as_u64().unwrap() > 0);

    let _holder = test.holder("x", &[]);
    let ended = test.ran("run --try --status-file s.json x -- true");
    ended.is_one_line(exit::BUSY, &["`x`", "busy", "held by", ": sh"]);
    let status = json_file(&test.path("s.json"));
    assert_eq!((&status["outcome"], &status["exit_code"]), (&json!("busy"), &Value::Null));

    assert_eq!(test.ran("run --wait 50ms --status-file s.json x -- true").code, i32::from(exit::BUSY));
    assert_eq!(json_file(&test.path("s.json"))["outcome"], "timed-out");

    assert_eq!(test.ran("run --status-file s.json y -- no-such-program").code, i32::from(exit::NOT_FOUND));
    let status = json_file(&test.path("s.json"));
    assert_eq!(status["outcome"], "failed");
    assert!(status["error"].as_str().unwrap().contains("no-such-program"), "{status}");
    let left: Vec<_> =
        std::fs::read_dir(test.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        left.iter().all(|name| !name.to_string_lossy().contains("status-")),
        "nothing beside it: {left:?}"
    );
}

#[test]
fn broken_lock_ends_the_command_with_exit_code_76() {
    let test = TestDir::new();
    let holder = test.holder("x", &["--status-file", "s.json"]);
    let ended = test.ran(&format!("break x --token {} --by ana --reason test", holder.token));
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    let ended = holder.ended();
    ended.is_one_line(exit::LOST, &["`x` was lost", "ana broke it: \"test\"", "ending the command"]);
    let status = json_file(&test.path("s.json"));
    assert_eq!((&status["outcome"], &status["lost"]), (&json!("lost"), &json!("broken")));
    assert_eq!((&status["signal"], &status["exit"]), (&json!(15), &json!(76)));
    assert_eq!(test.ran("run --try x -- true").code, 0, "free at once");
}

#[test]
fn command_ignoring_sigterm_is_killed_after_the_grace() {
    let test = TestDir::new();
    let script = "trap '' TERM; touch ready; while :; do sleep 1; done";
    let words = ["run", "--grace", "200ms", "--status-file", "s.json", "x", "--", "sh", "-c", script];
    let running = test.lockkeeper(words).started();
    wait_until("the command is ready", || test.path("ready").exists());
    let token = test.shown("x")["holds"][0]["token"].as_u64().unwrap();
    assert_eq!(test.ran(&format!("break x --token {token} --reason test")).code, 0);
    assert_eq!(running.ended().code, i32::from(exit::LOST));
    assert_eq!(json_file(&test.path("s.json"))["signal"], 9);
}

#[test]
fn max_hold_ends_the_command_for_locks_with_and_without_deadline() {
    let test = TestDir::new();
    for url in [test.url(), "memory:".to_owned()] {
        let words =
            ["run", "--locks", &url, "--max-hold", "600ms", "--lost-exit", "99", "x", "--", "sleep", "600"];
        let ended = test.lockkeeper(words).ended();
        ended.is_one_line(99, &["`x`", "--max-hold is over", "ending the command"]);
    }
}

#[test]
fn lease_is_renewed_while_the_command_runs() {
    let test = TestDir::new();
    let words = ["run", "--locks", "memory:", "--ttl", "1s", "x", "--", "sleep", "2.5"];
    let ended = test.lockkeeper(words).ended();
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
}

#[test]
fn lock_is_held_until_the_last_descendant_has_ended() {
    let test = TestDir::new();
    let script = "(while [ ! -e stop ]; do sleep 0.05; done) > /dev/null 2>&1 & exit 4";
    let told = test.path("told");
    let mut command = test.lockkeeper(["run", "x", "--", "sh", "-c", script]);
    let mut running = command.stderr(std::fs::File::create(&told).unwrap()).spawn().unwrap();
    // The shell exits at once; its background process keeps the lock.
    wait_until("it says so", || std::fs::read_to_string(&told).unwrap().ends_with('\n'));
    assert_eq!(test.ran("run --try x -- true").code, i32::from(exit::BUSY));
    std::fs::write(test.path("stop"), "").unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(4));
    let said = std::fs::read_to_string(&told).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    for words in ["but left ", " running", "`x` is held until"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert_eq!(test.ran("run --try x -- true").code, 0);
}

#[test]
fn killed_wrapper_releases_its_lock_and_leaves_no_command() {
    let test = TestDir::new();
    let holder = test.holder("x", &["--grace", "200ms"]);
    holder.signal(Signal::SIGKILL);
    let next = test.ran("run --wait 30s x -- true");
    assert_eq!((next.code, next.err.as_str()), (0, ""));
}

#[test]
fn name_may_begin_with_a_dash() {
    let test = TestDir::new();
    let ended = test.ran("run -- -dash -- printenv LOCKKEEPER_NAME");
    assert_eq!((ended.code, ended.out.as_str()), (0, "-dash\n"));
    test.ran("run -- true").is_one_line(exit::USAGE, &["name is empty", "NAME -- COMMAND"]);
    assert_eq!(test.ran("show -- -dash").out, "-dash: not held\n");
}

#[test]
fn label_of_another_client_is_printed_on_one_line() {
    let test = TestDir::new();
    let label = "\x1b[2Jme\n`x`: mallory leads\u{202e}";
    let _holder = test.holder("x", &["--label", label]);
    let shown = "\\u{1b}[2Jme\\n`x`: mallory leads\\u{202e}";
    for line in ["show x", "ls", "run --try x -- true", "run --wait 10ms x -- true"] {
        let ended = test.ran(line);
        let printed = ended.out + &ended.err;
        assert!(printed.contains(shown) && !printed.contains('\x1b'), "{line}: {printed:?}");
    }
    assert!(test.shown("x")["holds"][0]["label"].as_str().unwrap().starts_with(label), "JSON is unchanged");
}

#[test]
fn lock_directory_is_made_for_its_user_whatever_the_umask_is() {
    let test = TestDir::new();
    let script = "umask 0777; exec \"$0\" run x -- true";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lockkeeper")]);
    let url = format!("file://{}", test.path("above/locks").display());
    assert!(shell.env("LOCKKEEPER_URL", url).status().unwrap().success());
    for (name, mode) in [
        ("above", 0o700),
        ("above/locks", 0o700),
        ("above/locks/locks", 0o700),
        ("above/locks/counter", 0o600),
    ] {
        let found = std::fs::metadata(test.path(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found, mode, "{name}: {found:o}");
    }
}

#[test]
fn lock_that_is_not_there_at_the_end_is_lost_and_records_nothing() {
    let test = TestDir::new();
    let ended = test.ran("run --status-file s.json x -- rm locks/locks/x.hold");
    ended.is_one_line(exit::LOST, &["`x`", "lost before it was released"]);
    assert_eq!(json_file(&test.path("s.json"))["outcome"], "lost");
    for runs in 1..=2 {
        let job = "rm locks/locks/x.hold; echo ran >> ran";
        let ended = test.lockkeeper(["run", "--once-key", "k", "x", "--", "sh", "-c", job]).ended();
        assert_eq!(ended.code, i32::from(exit::LOST), "{ended:?}");
        assert_eq!(std::fs::read_to_string(test.path("ran")).unwrap().lines().count(), runs);
    }
}

#[test]
fn owner_names_the_program_without_its_arguments() {
    let test = TestDir::new();
    let owner = |options: &[&str], name: &str| {
        let script = "touch begun-$LOCKKEEPER_NAME; exec sleep 600";
        let words = [&["run"], options, &[name, "--", "/bin/sh", "-c", script, "password=hunter2"]].concat();
        let running = test.lockkeeper(words).current_dir(test.path("")).started();
        wait_until("it runs", || test.path(&format!("begun-{name}")).exists());
        let owner = test.shown(name)["holds"][0]["label"].as_str().unwrap().to_owned();
        running.signal(Signal::SIGTERM);
        owner
    };
    let by_default = owner(&[], "a");
    assert!(by_default.contains('@') && by_default.ends_with(": sh"), "{by_default}");
    // A directory of locks adds the process id.
    assert!(owner(&["--label", "the nightly job"], "b").starts_with("the nightly job"));
}
