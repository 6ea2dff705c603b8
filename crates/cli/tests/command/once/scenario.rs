//! A job that is run once per key, with records anywhere.

use lockkeeper_cli::exit;

use crate::support::{CommandExt, Ended, TestDir, json_file};

/// Appends a line to `done` and ends with `code`.
pub(crate) fn job(test: &TestDir, options: &[&str], code: u8) -> Ended {
    let script = format!("echo done >> done; exit {code}");
    test.lockkeeper([&["run"], options, &["jobs", "--", "sh", "-c", &script]].concat()).ended()
}

pub(crate) fn times_done(test: &TestDir) -> usize {
    std::fs::read_to_string(test.path("done")).unwrap_or_default().lines().count()
}

/// Runs a failing command, the same one with success, and then once more, with records at `records`.
pub(crate) fn once(test: &TestDir, records: &[&str]) {
    let options = [&["--once-key", "2026-11 %/'"], records].concat();
    assert_eq!(job(test, &options, 3).code, 3, "a failure is no outcome");
    let first = job(test, &options, 0);
    assert_eq!((first.code, first.err.as_str()), (0, ""), "{first:?}");
    let again = job(test, &[&options[..], &["--status-file", "status"]].concat(), 0);
    again.is_one_line(exit::OK, &["not run", "done at 20", ": sh"]);
    let status = json_file(&test.path("status"));
    assert_eq!(
        (&status["outcome"], &status["exit_code"]),
        (&"already-done".into(), &serde_json::Value::Null)
    );
    assert_eq!(times_done(test), 2);
    assert_eq!(job(test, &[&["--once-key", "another"], records].concat(), 0).code, 0);
    assert_eq!(times_done(test), 3);
}
