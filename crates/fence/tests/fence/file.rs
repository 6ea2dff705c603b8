//! The file fence on real files: durability, refusals and error texts.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::Token;
use lockkeeper_fence::file::Unguardable;
use lockkeeper_fence::{FileError, FileFence, Marks, Refused, Section};

fn exclusive(value: u64) -> Section {
    Section::exclusive(Token::new(value).expect("a token"))
}

/// A fence over `data` in a new directory.
fn fenced() -> (tempfile::TempDir, FileFence) {
    let dir = tempfile::tempdir().expect("a directory");
    let fence = FileFence::new(dir.path().join("data")).expect("a fence");
    (dir, fence)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn beside(fence: &FileFence, end: &str) -> PathBuf {
    let mut name = fence.path().as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn unguardable<T: std::fmt::Debug>(result: Result<T, FileError>) -> Unguardable {
    match result {
        Err(FileError::Unguardable { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stale_write_changes_nothing_and_the_marks_outlive_the_process() {
    let (dir, fence) = fenced();
    fence.enter(exclusive(5)).expect("never seen");
    assert_eq!(fence.read().expect("readable"), None);
    fence.write(exclusive(5), b"five").expect("live");

    // A second value acts as another process: the two share only the files.
    let other = FileFence::new(dir.path().join("data")).expect("a fence");
    other.enter(exclusive(6)).expect("later");
    let refused = fence.write(exclusive(5), b"late").expect_err("stale");
    assert!(matches!(refused, FileError::Refused(Refused::Stale { .. })), "{refused}");
    assert_eq!(fence.read().expect("readable").as_deref(), Some(&b"five"[..]));
    other.write(exclusive(6), b"six").expect("live");
    assert_eq!(fs::read(fence.path()).expect("a plain file"), b"six");
    assert_eq!(names(dir.path()), ["data", "data.fence", "data.fence.lock"]);
}

#[test]
fn reading_the_marks_creates_nothing() {
    let (dir, fence) = fenced();
    assert_eq!(fence.marks().expect("readable"), Marks::default());
    assert_eq!(names(dir.path()), [""; 0]);
    fence.check(exclusive(3)).expect("live");
    assert_eq!(fence.marks().expect("readable").base.writer, Token::new(3));
}

#[test]
fn reset_lowers_the_marks_to_the_given_token() {
    let (_dir, fence) = fenced();
    fence.enter(exclusive(900)).expect("the first");
    let slot = Section::permit(3, Token::new(950).expect("a token")).expect("a section");
    fence.enter(slot).expect("a slot");
    assert!(matches!(fence.enter(exclusive(17)), Err(FileError::Refused(Refused::Stale { .. }))));
    fence.reset(Token::new(17).expect("a token")).expect("a reset");
    let marks = FileFence::new(fence.path()).expect("a fence").marks().expect("marks");
    assert_eq!((marks.base.any, marks.base.writer), (Token::new(17), Token::new(17)));
    assert!(marks.slots.is_empty(), "{marks:?}");
    fence.enter(exclusive(17)).expect("as high as the mark");
    assert!(matches!(fence.enter(exclusive(16)), Err(FileError::Refused(Refused::Stale { .. }))));
}

#[test]
fn content_of_any_size_and_names_of_any_bytes_work() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in [&b"with space"[..], b"not \xff text", b"-rf", b".hidden", &[b'n'; 244]] {
        let fence = FileFence::new(dir.path().join(OsStr::from_bytes(name))).expect("a fence");
        for content in [vec![], vec![7; 3 << 20], vec![0]] {
            fence.write(exclusive(1), &content).expect("live");
            assert_eq!(fence.read().expect("readable"), Some(content));
        }
    }
    let long = FileFence::new(dir.path().join("n".repeat(245))).expect("a name by itself");
    let error = long.enter(exclusive(1)).expect_err("no room for `.fence.lock`");
    assert!(error.to_string().contains("11 bytes"), "{error}");
}

#[test]
fn mode_and_owner_are_kept_and_copied_to_the_fences_files() {
    let (_dir, fence) = fenced();
    fs::write(fence.path(), "old").expect("written");
    // Root may give the file to another owner, to test that the owner is kept; other users can't.
    let ours = fs::metadata(fence.path()).expect("a file");
    let (user, group) = if ours.uid() == 0 { (65_534, 65_533) } else { (ours.uid(), ours.gid()) };
    chown(fence.path(), Some(user), Some(group)).expect("root, or no change");
    fs::set_permissions(fence.path(), fs::Permissions::from_mode(0o640)).expect("own file");
    for token in [1, 2] {
        fence.write(exclusive(token), b"new").expect("live");
        for path in [fence.path().to_owned(), beside(&fence, ".fence"), beside(&fence, ".fence.lock")] {
            let found = fs::metadata(&path).expect("a file");
            let is = (found.mode() & 0o7777, found.uid(), found.gid());
            assert_eq!(is, (0o640, user, group), "{}", path.display());
        }
    }
}

#[test]
fn a_symlink_is_refused_and_its_target_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let (target, link) = (dir.path().join("target"), dir.path().join("link"));
    symlink(&target, &link).expect("a link");
    assert!(matches!(unguardable(FileFence::new(&link)), Unguardable::Symlink { .. }), "a dangling one");
    fs::write(&target, "x").expect("written");
    let target = target.canonicalize().expect("a path");
    assert_eq!(unguardable(FileFence::new(&link)), Unguardable::Symlink { target });

    // A symlink that replaced the file after the fence was created is refused, too.
    let fence = FileFence::new(dir.path().join("later")).expect("a fence");
    fence.write(exclusive(1), b"x").expect("live");
    fs::remove_file(fence.path()).expect("removed");
    symlink("target", fence.path()).expect("a link");
    assert!(matches!(unguardable(fence.write(exclusive(1), b"y")), Unguardable::Symlink { .. }));
    assert!(matches!(unguardable(fence.read()), Unguardable::Symlink { .. }));
}

#[test]
fn a_directory_behind_a_symlink_has_the_same_fence() {
    let (dir, fence) = fenced();
    let alias = tempfile::tempdir().expect("a directory");
    let alias = alias.path().join("alias");
    symlink(dir.path(), &alias).expect("a link");
    FileFence::new(alias.join("data")).expect("a fence").enter(exclusive(9)).expect("live");
    assert!(matches!(fence.enter(exclusive(8)), Err(FileError::Refused(Refused::Stale { .. }))));
}

#[test]
fn file_with_two_hard_links_is_refused() {
    let (dir, fence) = fenced();
    fs::write(fence.path(), "x").expect("written");
    fs::hard_link(fence.path(), dir.path().join("other")).expect("a link");
    assert_eq!(unguardable(FileFence::new(fence.path())), Unguardable::HardLinks { names: 2 });
    assert_eq!(unguardable(fence.write(exclusive(1), b"y")), Unguardable::HardLinks { names: 2 });
}

#[test]
fn paths_without_a_file_name_or_of_a_fences_file_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for path in ["/", "", "..", "a/.."] {
        assert_eq!(unguardable(FileFence::new(path)), Unguardable::NoName, "{path:?}");
    }
    for own in ["data.fence", "data.fence.lock", "data.fence.new", ".fence"] {
        assert_eq!(unguardable(FileFence::new(dir.path().join(own))), Unguardable::OwnFile, "{own}");
    }
}

#[test]
fn a_missing_directory_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("no such directory");
    let error = FileFence::new(missing.join("data")).expect_err("missing").to_string();
    assert!(error.contains("no such directory") && error.contains("does not exist"), "{error}");

    fs::create_dir(&missing).expect("created");
    let fence = FileFence::new(missing.join("data")).expect("a fence");
    fs::remove_dir(&missing).expect("removed");
    let error = fence.enter(exclusive(1)).expect_err("removed under the fence").to_string();
    assert!(error.contains("no such directory") && error.contains("does not exist"), "{error}");
}

#[test]
fn a_directory_can_be_guarded_by_effects_but_not_replaced() {
    let (_dir, fence) = fenced();
    fs::create_dir(fence.path()).expect("created");
    fence.enter(exclusive(1)).expect("live");
    let both = fence.write_with(exclusive(1), || {
        fs::write(fence.path().join("a"), "1").and_then(|()| fs::write(fence.path().join("b"), "1"))
    });
    both.expect("live").expect("both written");
    assert_eq!(unguardable(fence.write(exclusive(1), b"x")), Unguardable::NotAFile);
    assert_eq!(unguardable(fence.read()), Unguardable::NotAFile);
    let mut ran = false;
    assert!(fence.write_with(Section::shared(Token::MIN), || ran = true).is_err());
    assert!(!ran, "a refused effect never runs");
}

/// Asserts that every call that could accept a stale token returns the expected error.
fn all_refuse(fence: &FileFence, what: &str, expected: fn(&FileError) -> bool) {
    let section = exclusive(99);
    let answers = [
        fence.enter(section),
        fence.write(section, b"new"),
        fence.check(section),
        fence.check_once(section, || ()),
        fence.marks().map(drop),
    ];
    for (call, answer) in answers.into_iter().enumerate() {
        let error = answer.expect_err(what);
        assert!(expected(&error), "{what}, call {call}: {error:?}");
    }
    assert_eq!(fence.read().expect("readable").as_deref(), Some(&b"old"[..]), "{what}");
}

#[test]
fn any_damage_to_the_mark_file_refuses_every_call() {
    let (_dir, fence) = fenced();
    fence.write(exclusive(17), b"old").expect("live");
    let path = beside(&fence, ".fence");
    let good = fs::read(&path).expect("marks");
    let corrupt = |error: &FileError| matches!(error, FileError::MarksCorrupt { .. });
    for at in 0..good.len() {
        fs::write(&path, &good[..at]).expect("written");
        all_refuse(&fence, &format!("cut at {at}"), corrupt);
        for bit in 0..8 {
            let mut flipped = good.clone();
            flipped[at] ^= 1 << bit;
            fs::write(&path, &flipped).expect("written");
            all_refuse(&fence, &format!("byte {at}, bit {bit} flipped"), corrupt);
        }
    }
    fs::write(&path, vec![b'x'; 8 << 20]).expect("written");
    all_refuse(&fence, "far too long", corrupt);
    let error = fence.enter(exclusive(99)).expect_err("damaged").to_string();
    assert!(error.contains("data.fence") && error.contains("check-token"), "{error}");

    fs::write(&path, good).expect("restored");
    assert!(
        matches!(fence.enter(exclusive(16)), Err(FileError::Refused(_))),
        "the restored marks count again"
    );
    fence.enter(exclusive(17)).expect("live");
}

#[test]
fn missing_marks_are_not_treated_as_never_seen() {
    let (_dir, fence) = fenced();
    fence.write(exclusive(17), b"old").expect("live");
    fs::remove_file(beside(&fence, ".fence")).expect("removed");
    all_refuse(&fence, "vanished", |error| matches!(error, FileError::MarksMissing { .. }));

    // The remedy of the error text: without both files the fence starts from scratch, at the given token.
    fs::remove_file(beside(&fence, ".fence.lock")).expect("removed");
    fence.enter(exclusive(17)).expect("as never seen");
    assert!(matches!(fence.enter(exclusive(16)), Err(FileError::Refused(_))));
}

#[test]
fn missing_lock_file_is_recreated_and_the_marks_are_kept() {
    let (_dir, fence) = fenced();
    fence.write(exclusive(17), b"old").expect("live");
    fs::remove_file(beside(&fence, ".fence.lock")).expect("removed");
    assert!(matches!(fence.enter(exclusive(16)), Err(FileError::Refused(_))));
    fence.enter(exclusive(18)).expect("live");
    // The recreated lock file records again that marks exist.
    fs::remove_file(beside(&fence, ".fence")).expect("removed");
    all_refuse(&fence, "vanished", |error| matches!(error, FileError::MarksMissing { .. }));
}

#[test]
fn symlinks_in_place_of_the_fences_files_are_not_followed() {
    for end in [".fence", ".fence.lock"] {
        let (dir, fence) = fenced();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "precious").expect("written");
        symlink(&elsewhere, beside(&fence, end)).expect("a link");
        let error = fence.enter(exclusive(1)).expect_err("a symlink");
        assert!(matches!(error, FileError::Io { .. }), "{end}: {error:?}");
        assert_eq!(fs::read(&elsewhere).expect("untouched"), b"precious");
    }
    let (dir, fence) = fenced();
    let elsewhere = dir.path().join("elsewhere");
    fs::write(&elsewhere, "precious").expect("written");
    symlink(&elsewhere, beside(&fence, ".fence.new")).expect("a link");
    fence.write(exclusive(1), b"x").expect("the link is removed, not followed");
    assert_eq!(fs::read(&elsewhere).expect("untouched"), b"precious");
}

#[test]
fn partial_replacement_of_a_killed_process_is_overwritten() {
    let (dir, fence) = fenced();
    fs::write(beside(&fence, ".fence.new"), "half").expect("written");
    fence.write(exclusive(1), b"whole").expect("live");
    assert_eq!(fence.read().expect("readable").as_deref(), Some(&b"whole"[..]));
    assert_eq!(names(dir.path()), ["data", "data.fence", "data.fence.lock"]);
}

#[test]
fn check_waits_for_a_concurrent_one_up_to_its_limit() {
    let (_dir, fence) = fenced();
    let (inside, wait_inside) = mpsc::channel();
    let (go_on, wait_go_on) = mpsc::channel::<()>();
    let holder = {
        let fence = fence.clone();
        thread::spawn(move || {
            fence.write_with(exclusive(1), || {
                inside.send(()).expect("the test waits");
                wait_go_on.recv().expect("the test says so");
            })
        })
    };
    wait_inside.recv().expect("the holder is inside");
    let error = fence.clone().wait_at_most(Duration::from_millis(20)).enter(exclusive(2)).expect_err("busy");
    assert!(matches!(error, FileError::Busy { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("data.fence.lock") && text.contains("20ms") && text.contains("stopped"), "{text}");

    let waiter = {
        let fence = fence.clone();
        thread::spawn(move || fence.enter(exclusive(2)))
    };
    go_on.send(()).expect("the holder waits");
    holder.join().expect("a holder").expect("live");
    waiter.join().expect("a waiter").expect("live");
    assert_eq!(fence.marks().expect("readable").base.any, Token::new(2));
}

#[test]
fn panic_in_an_effect_releases_the_lock() {
    let (_dir, fence) = fenced();
    let panicking = fence.clone();
    let ended = thread::spawn(move || panicking.write_with(exclusive(2), || panic!("the effect fails")));
    assert!(ended.join().is_err());
    fence.wait_at_most(Duration::from_secs(5)).enter(exclusive(2)).expect("free, and the same token goes on");
}

#[test]
fn check_once_uses_the_token_even_if_its_effect_fails() {
    let (_dir, fence) = fenced();
    let failed = fence.check_once(exclusive(4), || Err::<(), _>(io::Error::other("mail server is down")));
    assert!(failed.expect("live").is_err());
    let again = fence.check_once(exclusive(4), || panic!("must not run")).expect_err("spent");
    assert!(matches!(again, FileError::Refused(Refused::Repeated { .. })), "{again:?}");
}

#[test]
fn system_error_is_the_source_and_not_in_the_text() {
    let error = FileFence::new("/no such directory/data").expect_err("missing");
    let source = std::error::Error::source(&error).expect("the system's words").to_string();
    assert!(!error.to_string().contains(&source), "{error} / {source}");
}
