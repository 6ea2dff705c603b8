//! Runs that would wait for each other without end.

use lockkeeper_cli::exit;

use crate::support::{CommandExt, TestDir, wait_until};

const OWN: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// `run a -- run b` against `run b -- run a`: the last one ends at once, and the other goes on.
#[test]
fn last_of_two_runs_in_opposite_order_is_refused() {
    let (test, _node) = TestDir::new().served();
    let job = |outer: &str, inner: &str, go: &str| {
        let script = format!(
            "touch has-{outer}; until [ -e {go} ]; do sleep 0.02; done; exec {OWN} run {inner} -- touch did-{inner}"
        );
        test.lockkeeper(["run", "--label", &format!("job {outer}"), outer, "--", "sh", "-c", &script])
            .started()
    };
    let first = job("a", "b", "has-b");
    let second = job("b", "a", "go");
    wait_until("both hold", || test.path("has-a").exists() && test.path("has-b").exists());
    test.wait_for_waiters("b", 1);
    std::fs::write(test.path("go"), "").unwrap();
    let words =
        ["deadlock", "this request waits for `a`", "(job a) holds `a`", "waits as", "for `b`", "holds `b`"];
    second.ended().is_one_line(exit::DEADLOCK, &words);
    first.ended().is_silent_success();
    assert!(test.path("did-b").exists() && !test.path("did-a").exists());
    // With a limit it waits, since that ends by itself.
    let limited = format!("run x -- {OWN} run --wait 2s x -- true");
    test.ran(&limited).is_one_line(exit::DEADLOCK, &["--reenter"]);
    let holder = test.holder("y", &[]);
    let limited = format!("run x -- {OWN} run --wait 2s y -- true");
    let busy = test.ran(&limited);
    assert!(busy.code == i32::from(exit::BUSY) && busy.err.contains("did not become free"), "{busy:?}");
    drop(holder);
}

/// The nested run works under the hold that is there, with its token, and takes no lock of its own.
#[test]
fn nested_run_reenters_a_hold_of_the_service() {
    let (test, _node) = TestDir::new().served();
    let tokens = test
        .lockkeeper(["run", "x", "--", "sh", "-c"])
        .arg(format!(
            "echo $LOCKKEEPER_TOKEN; {OWN} run --reenter x -- sh -c 'echo $LOCKKEEPER_TOKEN $LOCKKEEPER_NAME'"
        ))
        .ended();
    let lines: Vec<&str> = tokens.out.lines().collect();
    assert!(tokens.code == 0 && lines.len() == 2, "{tokens:?}");
    assert_eq!(lines[1], format!("{} x", lines[0]));
    test.ran(&format!("run --shared x -- {OWN} run x -- true")).is_one_line(exit::DEADLOCK, &["`x`"]);
    test.ran("run --reenter x -- true").is_silent_success();
}
