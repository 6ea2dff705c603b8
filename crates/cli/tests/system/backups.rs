//! `backup` of a live service, and `restore` into a new cluster.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::node::Node;
use crate::support::{CommandExt, TestDir, wait_until};

/// Runs the command `line`, and returns its JSON output.
fn said(test: &TestDir, line: &str) -> Value {
    let ended = test.ran(&format!("{line} --json"));
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{line}: {ended:?}");
    serde_json::from_str(&ended.out).unwrap()
}

/// Starts a node from restored data; also returns the first two tokens that it issues.
fn served(test: TestDir, data: &str) -> (TestDir, Node, [u64; 2]) {
    let node = test.serve_from(data, "127.0.0.1:0");
    let test = test.over(&node.url());
    let tokens = [(); 2].map(|()| token(&test, "counted"));
    (test, node, tokens)
}

/// Acquires and releases a lock; returns the token.
fn token(test: &TestDir, name: &str) -> u64 {
    let ended = test.lockkeeper(["run", name, "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]).ended();
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.out.trim().parse().unwrap()
}

/// A test directory that contains `locks`, a backup of a node that was stopped since.
fn with_backup() -> TestDir {
    let (test, node) = TestDir::new().served();
    token(&test, "a");
    assert_eq!(test.ran("set-limit gpu 4").code, 0);
    said(&test, "backup locks");
    node.kill();
    test
}

#[test]
fn restore_of_a_backup_under_load_issues_tokens_above_all_earlier_ones() {
    let (test, node) = TestDir::new().served();
    let load = ["bench", "--workload", "uncontended", "--clients", "8", "--seconds", "3"];
    let load = test.lockkeeper(load).started();
    assert_eq!(test.ran("set-limit gpu 4").code, 0);
    let careful = test.holder("orders/42", &["--lock-delay", "5m"]);
    let plain = test.holder("reports", &[]);
    let waiter = test.lockkeeper(["run", "orders/42", "--", "true"]).started();
    test.wait_for_waiters("orders/42", 1);

    let backup = said(&test, "backup locks");
    assert_eq!(backup["bytes"], fs::metadata(test.path("locks")).unwrap().len());
    assert_eq!(fs::metadata(test.path("locks")).unwrap().permissions().mode() & 0o777, 0o600);
    let ended = load.ended();
    assert_eq!(ended.code, 0, "the load went on all the while: {ended:?}");
    // This token is issued after the backup, which therefore does not contain it.
    let issued = token(&test, "later");
    assert!(issued > backup["last_token"].as_u64().unwrap());
    assert!(issued > careful.token && issued > plain.token);
    node.kill();

    let first = said(&test, "restore locks --data first");
    assert_eq!(first["backup"]["cluster"], backup["cluster"]);
    assert_ne!(first["cluster"], backup["cluster"]);
    let owners: Vec<&str> = first["dropped"]["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|session| session["label"].as_str().unwrap())
        .collect();
    assert!(owners.iter().any(|owner| owner.ends_with(": sh")), "{first}");
    assert!(first["dropped"]["waiters"].as_u64() >= Some(1) && first["dropped"]["holds"].as_u64() >= Some(2));
    assert_eq!(first["closed"], json!([{ "names": ["orders/42"], "closed_for_ms": 300_000 }]));
    assert_eq!(first["limits"], 1);

    let (test, node, tokens) = served(test, "first");
    assert!(tokens[0] > issued, "{tokens:?}, {issued}");
    let sessions = said(&test, "sessions");
    let left: Vec<&Value> = sessions
        .as_array()
        .unwrap()
        .iter()
        .filter(|session| owners.contains(&session["label"].as_str().unwrap()) && session["requests"] != 0)
        .collect();
    assert!(left.is_empty(), "old sessions live: {left:?}");
    assert_eq!(test.shown("orders/42")["holds"][0]["state"], "closed");
    assert_eq!(test.ran("run --try orders/42 -- true").code, i32::from(exit::BUSY));
    assert_eq!(test.ran("run --try reports -- true").code, 0, "it is free");
    assert_eq!(test.ran(&format!("check-token reports {}", plain.token)).code, i32::from(exit::NO));
    let wrong = test.ran("run --try --permit=9 gpu -- true");
    assert_eq!(wrong.code, 0, "the stored number goes for everyone: {wrong:?}");
    assert_eq!(test.shown("gpu")["permits"], 4);
    node.kill();

    let second = said(&test, "restore locks --data second --node 3");
    assert_eq!((&second["node"], second["cluster"] == first["cluster"]), (&json!(3), false));
    let (test, node, again) = served(test, "second");
    assert!(again[0] > tokens[1], "the first restore gave {tokens:?}, the second {again:?}");
    // Restored data survive a restart like any other data.
    node.kill();
    let (test, _node, later) = served(test, "second");
    assert_eq!(later[0], again[1] + 1);
    assert_eq!(test.shown("orders/42")["holds"][0]["state"], "closed");
    // The old cluster's clients are not contacted by the new cluster: their holds end by their own clocks.
    drop((careful, plain, waiter));
}

#[test]
fn restore_prints_a_text_summary() {
    let test = with_backup();
    let ended = test.ran("restore locks --data new");
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    for words in [
        "of the new cluster",
        "tokens go on above",
        "whoever held a lock must acquire it anew",
        "1 stored numbers",
    ] {
        assert!(ended.out.contains(words), "no {words:?} in {}", ended.out);
    }
}

#[test]
fn incomplete_backup_does_not_replace_an_earlier_one() {
    let (test, node) = TestDir::new().served();
    said(&test, "backup locks");
    let first = fs::read(test.path("locks")).unwrap();
    token(&test, "a");
    said(&test, "backup locks");
    let second = fs::read(test.path("locks")).unwrap();
    assert_ne!(first, second);
    node.kill();
    let ended = test.ran("backup locks");
    assert_eq!(ended.code, i32::from(exit::UNAVAILABLE), "{ended:?}");
    assert_eq!(fs::read(test.path("locks")).unwrap(), second);
    let left: Vec<_> = fs::read_dir(test.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".tmp")), "{left:?}");
}

#[test]
fn invalid_backup_file_is_refused_with_byte_offset_and_creates_nothing() {
    let test = with_backup();
    let whole = fs::read(test.path("locks")).unwrap();
    let refused = |bytes: &[u8], words: &[&str]| {
        fs::write(test.path("bad"), bytes).unwrap();
        let words = [&["`bad`"], words].concat();
        test.ran("restore bad --data new").is_one_line(exit::IO, &words);
        assert!(!test.path("new").exists());
    };
    for at in [600, whole.len() / 2, whole.len() - 5] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        refused(&damaged, &["at byte", "checksum", "take another backup"]);
    }
    refused(&whole[..whole.len() - 1], &["at byte"]);
    refused(&whole[..512], &["at byte 512", "0 bytes are left"]);
    refused(b"", &["at byte 0", "ends within its header"]);
    refused(&[0x20; 4096], &["does not begin as a file of Lockkeeper does"]);
    refused(&fs::read(test.path("data/founding")).unwrap(), &["is of kind"]);
    let mut newer = whole;
    newer[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let checksum = crc32fast::hash(&newer[..508]);
    newer[508..512].copy_from_slice(&checksum.to_le_bytes());
    refused(&newer, &[&format!("has format {}", u32::MAX), "use the newer program"]);
    test.ran("restore nowhere --data new").is_one_line(exit::IO, &["cannot open `nowhere`"]);
}

#[test]
fn restore_is_recorded_in_the_audit_trail_that_it_is_given() {
    let test = with_backup();
    test.ran("restore locks --data new --audit missing/audit")
        .is_one_line(exit::IO, &["`missing/audit` can't be written", "nothing was restored"]);
    let restored = said(&test, "restore locks --data new --audit audit");
    let record = crate::support::json_file(&test.path("audit"));
    assert_eq!((&record["what"], &record["result"]), (&"restore".into(), &"done".into()), "{record}");
    let detail = record["detail"].as_str().unwrap();
    assert!(detail.contains(restored["cluster"].as_str().unwrap()) && detail.contains("`locks`"), "{record}");
    assert!(!record["identity"].as_str().unwrap().is_empty());
}

#[test]
fn restore_refuses_a_directory_that_is_not_empty() {
    let test = with_backup();
    fs::create_dir(test.path("mine")).unwrap();
    fs::write(test.path("mine/letter"), b"keep me").unwrap();
    test.ran("restore locks --data mine")
        .is_one_line(exit::CANNOT_CREATE, &["is not empty: `letter` is there"]);
    assert_eq!(fs::read_dir(test.path("mine")).unwrap().count(), 1, "not even a lock file");

    // The data directory of the node that the backup was taken from is refused, while the node is stopped and
    // while it runs.
    let refused =
        || test.ran("restore locks --data data").is_one_line(exit::CANNOT_CREATE, &["is not empty"]);
    refused();
    let node = test.serve("127.0.0.1:0");
    refused();
    assert_eq!(node.stopped(Signal::SIGTERM).code, 0);

    said(&test, "restore locks --data new");
    test.ran("restore locks --data new").is_one_line(exit::CANNOT_CREATE, &["is not empty"]);
}

#[test]
fn restore_interrupted_by_a_failed_sync_is_refused_by_serve_and_can_be_repeated() {
    let test = with_backup();
    let highest = 1_u64 << 50;
    let shim = lockkeeper_rig::Shim::new(&test.path(""));
    shim.set(lockkeeper_rig::Number::Error, 5);
    let (mut refused, mut is_done) = (0, false);
    // The first syncs make the new directory's name durable in its parent directory: if one of them fails,
    // the directory has no `restore-unfinished` file yet.
    for sync in 1.. {
        shim.set(lockkeeper_rig::Number::FailIn, sync);
        let tokens = highest.to_string();
        let mut command = test.bare(["restore", "locks", "--data", "new", "--tokens-above", &tokens]);
        let ended = command.envs(shim.environment()).ended();
        if ended.code == 0 {
            is_done = sync > 5;
            break;
        }
        let is_marked = test.path("new/restore-unfinished").exists();
        let files = fs::read_dir(test.path("new")).map_or(0, Iterator::count);
        assert!(is_marked || files <= 1, "sync {sync} failed: no mark, and {files} files");
        if is_marked {
            refused += 1;
            ended.is_one_line(exit::IO, &["is not finished", "Run it again with the same directory"]);
            test.ran("serve --data new --listen 127.0.0.1:0")
                .is_one_line(exit::IO, &["/new`", "was not finished", "run it again", "empty the directory"]);
        }
    }
    assert!(is_done && refused > 3, "{refused} were refused, the last was done: {is_done}");
    let (_place, _node, tokens) = served(test, "new");
    assert_eq!(tokens[0], highest + 1);
}

#[test]
fn restore_on_a_full_disk_is_refused_by_serve_and_can_be_repeated() {
    let test = with_backup();
    // The limit permits small files, but not a log segment: writing the segment fails (EFBIG).
    let script = r#"trap '' XFSZ; ulimit -f 2048; exec "$0" restore locks --data new"#;
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockkeeper")]).current_dir(test.path(""));
    command
        .ended()
        .is_one_line(exit::IO, &["/new`", "is not finished", "Run it again with the same directory"]);
    test.ran("serve --data new --listen 127.0.0.1:0")
        .is_one_line(exit::IO, &["/new`", "was not finished", "run it again"]);
    said(&test, "restore locks --data new");
    let (_place, _node, _tokens) = served(test, "new");
}

#[test]
fn clock_behind_the_backup_is_refused_without_tokens_above() {
    let test = with_backup();
    let shim = lockkeeper_rig::Shim::new(&test.path(""));
    shim.set(lockkeeper_rig::Number::AheadSec, -3600);
    let restore = |words: &[&str]| {
        let mut command = test.bare([&["restore", "locks", "--data", "new"], words].concat());
        command.envs(shim.environment()).ended()
    };
    restore(&[]).is_one_line(exit::CONFIG, &["behind the backup", "--tokens-above"]);
    assert!(!test.path("new").exists());
    let known = 1_u64 << 51;
    let ended = restore(&["--tokens-above", &known.to_string()]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert!(ended.out.contains(&format!("above {known}")), "{}", ended.out);
    let (_place, _node, tokens) = served(test, "new");
    assert_eq!(tokens[0], known + 1);
}

#[test]
fn backup_is_refused_for_other_lock_services() {
    let test = TestDir::new();
    test.ran("backup locks").is_one_line(exit::USAGE, &["make a backup", "use `lockkeeper://`"]);
    assert!(!test.path("locks-file").exists());
    let (test, _node) = test.served();
    test.ran("backup nowhere/locks").is_one_line(exit::IO, &["nowhere/locks"]);
    wait_until("the node serves all the same", || test.ran("ls").code == 0);
}

/// The drill of docs/operating.md, with other addresses.
fn drill(backups: &std::path::Path, port: u16) -> String {
    const PAGE: &str = include_str!("../../../../docs/operating.md");
    let drill = PAGE.split_once("\n### Restore drill\n").unwrap().1.split_once("```sh\n").unwrap().1;
    let drill = drill.split_once("```").unwrap().0;
    drill.replace("/backup/", &format!("{}/", backups.display())).replace(":5699", &format!(":{port}"))
}

#[test]
fn backups_are_made_on_schedule_verified_and_restored_by_the_drill() {
    let test = TestDir::new();
    let backups = test.path("backups");
    let stored = || -> Vec<String> {
        let names = fs::read_dir(&backups).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(".backup")).collect();
        names.sort_unstable();
        names
    };
    let schedule = ["--backup-every", "1s", "--backup-dir", "backups", "--backup-keep", "2"];
    let options = [&["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"], &schedule[..]].concat();
    let node = test.begin("data", &options).ready();
    let test = test.over(&node.url());
    wait_until("the missing directory is reported", || {
        node.log().contains("no backup in `backups`, it is tried again: cannot list `backups`")
    });
    let status = test.ran("cluster status");
    assert_eq!(status.code, i32::from(exit::UNHEALTHY), "{status:?}");
    assert!(
        status.out.contains("fails to make the backups of its schedule: cannot list `backups`"),
        "{status:?}"
    );
    let issued = token(&test, "orders/42");
    assert_eq!(test.ran("set-limit gpu 4").code, 0);
    fs::create_dir(&backups).unwrap();
    fs::write(backups.join("mine"), "").unwrap();
    wait_until("there is one", || !stored().is_empty());
    let first = stored().remove(0);
    wait_until("the oldest was removed", || !stored().contains(&first) && stored().len() == 2);
    assert!(backups.join("mine").exists());
    assert_eq!(test.ran("cluster status").code, i32::from(exit::OK));
    let kept = backups.join(&stored()[1]);
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    node.kill();

    let port = lockkeeper_rig::Port::free();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let ended = Command::new("sh").args(["-ec", &drill(&backups, port.number())]).env("PATH", path).ended();
    assert!(ended.code == 0 && ended.out.contains(r#""limits":1"#), "{ended:?}");
    let first = ended.out.split_once("the first token is ").unwrap().1.lines().next().unwrap();
    assert!(first.parse::<u64>().unwrap() > issued, "{issued}: {ended:?}");

    // One option without the other, and an interval out of bounds.
    test.ran("serve --data x --backup-every 1h").is_one_line(exit::USAGE, &["--backup-dir"]);
    test.ran("serve --data x --backup-dir b --backup-every 1ms").is_one_line(exit::USAGE, &["1s to 31days"]);
}
