//! `fence`: the command for shell scripts.

use lockkeeper_cli::exit;
use serde_json::{Value, json};

use crate::support::{CommandExt, TestDir};

#[test]
fn stale_writer_is_refused_with_the_current_mark() {
    let test = TestDir::new();
    assert_eq!(test.ran("fence enter stock --token 5").code, 0);
    assert_eq!(test.lockkeeper("fence write stock --token 5".split(' ')).fed(b"five").code, 0);
    assert_eq!(test.ran("fence enter stock --token 6").code, 0);
    let late = test.lockkeeper("fence write stock --token 5".split(' ')).fed(b"late");
    late.is_one_line(exit::STALE, &["token 5 is stale", "token 6"]);
    test.ran("fence check stock --token 5").is_one_line(exit::STALE, &["token 5 is stale"]);
    test.ran("fence enter stock --token 5").is_one_line(exit::STALE, &["token 5 is stale"]);
    assert_eq!(std::fs::read(test.path("stock")).unwrap(), b"five");
    let write =
        |more: &str| test.lockkeeper(format!("fence write stock --token 6{more}").split(' ')).fed(b"");
    write("").is_one_line(exit::USAGE, &["standard input is empty", "--allow-empty"]);
    assert_eq!(std::fs::read(test.path("stock")).unwrap(), b"five");
    assert_eq!(write(" --allow-empty").code, 0);
    assert_eq!(std::fs::read(test.path("stock")).unwrap(), b"");
    let told = test.ran("fence check stock --token 5 --json");
    assert_eq!((told.code, told.err.as_str()), (i32::from(exit::STALE), ""));
    let said: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((said["token"].as_u64(), said["highest"].as_u64()), (Some(5), Some(6)));
}

#[test]
fn script_under_run_updates_a_fenced_file() {
    let test = TestDir::new();
    std::fs::write(test.path("stock"), "1\n").unwrap();
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let script = format!(
        "'{program}' fence enter stock --token $LOCKKEEPER_TOKEN; n=$(cat stock); \
         echo $((n + 1)) | '{program}' fence write stock --token $LOCKKEEPER_TOKEN"
    );
    for _ in 0..3 {
        let ended = test.lockkeeper(["run", "stock", "--", "sh", "-ec", &script]).ended();
        assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    }
    assert_eq!(std::fs::read_to_string(test.path("stock")).unwrap(), "4\n");
}

#[test]
fn readers_enter_and_never_write() {
    let test = TestDir::new();
    assert_eq!(test.ran("fence enter stock --token 5 --mode shared").code, 0);
    let write = test.lockkeeper("fence write stock --token 5 --mode shared".split(' ')).fed(b"five");
    write.is_one_line(exit::USAGE, &["shared"]);
    test.ran("fence enter stock --token 5 --slot 1").is_one_line(exit::USAGE, &["slot 1"]);
    assert_eq!(test.ran("fence enter stock --token 7 --mode permit --slot 1").code, 0);
    assert_eq!(test.ran("fence enter stock --token 6 --mode permit --slot 0").code, 0, "another slot");
}

#[test]
fn marks_are_shown_and_reset_requires_yes() {
    let test = TestDir::new();
    assert_eq!(test.ran("fence show stock").out, "any none, writer none\n");
    assert!(!test.path("stock.fence").exists(), "a look makes nothing");
    assert_eq!(test.ran("fence enter stock --token 900").code, 0);
    assert_eq!(test.ran("fence enter stock --token 901 --mode permit --slot 2").code, 0);
    let shown = test.ran("fence show stock");
    assert_eq!((shown.code, shown.out.as_str()), (0, "any 900, writer 900\nslot 2: any 901, writer 901\n"));
    let json: Value = serde_json::from_str(&test.ran("fence show stock --json").out).unwrap();
    assert_eq!(json, json!({ "any": 900, "writer": 900, "slots": { "2": { "any": 901, "writer": 901 } } }));

    // The tokens of the new lock service are lower, so they are refused until the marks are reset with --yes.
    test.ran("fence enter stock --token 17").is_one_line(exit::STALE, &["token 17 is stale"]);
    let unsure = test.ran("fence reset stock --to 17");
    unsure.is_one_line(exit::USAGE, &["stock", "to 17", "any 900", "--yes"]);
    test.ran("fence enter stock --token 17").is_one_line(exit::STALE, &["token 17 is stale"]);
    let done = test.ran("fence reset stock --to 17 --yes");
    let text =
        "before: any 900, writer 900\n        slot 2: any 901, writer 901\nafter:  any 17, writer 17\n";
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (0, text, ""));
    assert_eq!(test.ran("fence enter stock --token 17").code, 0);
    test.ran("fence enter stock --token 16").is_one_line(exit::STALE, &["token 16 is stale"]);
    let raised = test.ran("fence reset stock --to 2000 --yes --json");
    let json: Value = serde_json::from_str(&raised.out).unwrap();
    assert_eq!((&json["before"]["any"], &json["after"]["writer"]), (&17.into(), &2000.into()));
}

#[test]
fn invalid_reset_is_refused() {
    let test = TestDir::new();
    test.ran("fence reset stock --to 0 --yes").is_one_line(exit::USAGE, &["`0` is not a fencing token"]);
    test.ran("fence show stock orders").is_one_line(exit::USAGE, &["orders", "stock"]);
    std::fs::write(test.path("stock.fence"), "damaged").unwrap();
    std::fs::write(test.path("stock.fence.lock"), "1").unwrap();
    test.ran("fence reset stock --to 5 --yes").is_one_line(exit::IO, &["stock.fence", "damaged"]);
    assert_eq!(std::fs::read(test.path("stock.fence")).unwrap(), b"damaged", "not written over");
}
