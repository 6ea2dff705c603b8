//! `fence`: for shell scripts.

use lockkeeper_cli::exit;
use serde_json::Value;

use crate::support::{CommandExt, Place};

#[test]
fn a_stale_writer_is_refused_and_told_the_mark() {
    let place = Place::new();
    assert_eq!(place.ran("fence enter stock --token 5").code, 0);
    assert_eq!(place.lockkeeper("fence write stock --token 5".split(' ')).fed(b"five").code, 0);
    assert_eq!(place.ran("fence enter stock --token 6").code, 0);
    let late = place.lockkeeper("fence write stock --token 5".split(' ')).fed(b"late");
    late.is_one_line(exit::STALE, &["token 5 is stale", "token 6"]);
    place.ran("fence check stock --token 5").is_one_line(exit::STALE, &["token 5 is stale"]);
    place.ran("fence enter stock --token 5").is_one_line(exit::STALE, &["token 5 is stale"]);
    assert_eq!(std::fs::read(place.path("stock")).unwrap(), b"five");
    let told = place.ran("fence check stock --token 5 --json");
    assert_eq!((told.code, told.err.as_str()), (i32::from(exit::STALE), ""));
    let said: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!((said["token"].as_u64(), said["highest"].as_u64()), (Some(5), Some(6)));
}

#[test]
fn a_script_under_run_updates_a_fenced_file() {
    let place = Place::new();
    std::fs::write(place.path("stock"), "1\n").unwrap();
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let script = format!(
        "'{program}' fence enter stock --token $LOCKKEEPER_TOKEN; n=$(cat stock); \
         echo $((n + 1)) | '{program}' fence write stock --token $LOCKKEEPER_TOKEN"
    );
    for _ in 0..3 {
        let ended = place.lockkeeper(["run", "stock", "--", "sh", "-ec", &script]).ended();
        assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    }
    assert_eq!(std::fs::read_to_string(place.path("stock")).unwrap(), "4\n");
}

#[test]
fn readers_enter_and_never_write() {
    let place = Place::new();
    assert_eq!(place.ran("fence enter stock --token 5 --mode shared").code, 0);
    place.ran("fence write stock --token 5 --mode shared").is_one_line(exit::USAGE, &["shared"]);
    place.ran("fence enter stock --token 5 --slot 1").is_one_line(exit::USAGE, &["slot 1"]);
    assert_eq!(place.ran("fence enter stock --token 7 --mode permit --slot 1").code, 0);
    assert_eq!(place.ran("fence enter stock --token 6 --mode permit --slot 0").code, 0, "another slot");
}
