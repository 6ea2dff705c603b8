//! The file without the thread: its content survives a close, and no damage is read as lower marks.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use lockkeeper_core::Token;

use super::*;
use crate::rule::{Action, Section};

fn marks(value: u64) -> Marks {
    let mut marks = Marks::default();
    let token = Token::new(value).expect("a token");
    let _ = marks.check(Action::Enter, Section::exclusive(token)).expect("never seen");
    let slot = Section::permit(3, Token::new(value + 1).expect("a token")).expect("a slot");
    let _ = marks.check(Action::Enter, slot).expect("live");
    marks
}

fn name(number: u64) -> Resource {
    Resource::new(&format!("resource {number}")).expect("a name")
}

/// A cleanly closed file with `resources` resources.
fn filled(path: &Path, resources: u64) -> Vec<(Resource, Marks)> {
    let mut disk = MarkDatabase::open(path).expect("new");
    disk.commit(&[(name(1), marks(1))]).expect("written");
    let changes: Vec<_> = (1..=resources).map(|number| (name(number), marks(number * 10))).collect();
    disk.commit(&changes).expect("written");
    changes
}

#[test]
fn marks_survive_a_close_and_an_unseen_resource_has_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.redb");
    let kept = filled(&path, 50);
    let mut disk = MarkDatabase::open(&path).expect("whole");
    for (resource, marks) in &kept {
        assert_eq!(&disk.load(resource).expect("whole"), marks);
    }
    assert_eq!(disk.load(&name(51)).expect("whole"), Marks::default());
    assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "one file, nothing beside it");
}

#[test]
fn second_open_fails_with_in_use() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.redb");
    let first = MarkDatabase::open(&path).expect("new");
    let error = MarkDatabase::open(&path).expect_err("in use");
    assert!(matches!(error, MarksError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    MarkDatabase::open(&path).expect("free again");
}

#[test]
fn file_without_marks_is_refused_and_left_unchanged() {
    let dir = tempfile::tempdir().expect("a directory");
    let whole = dir.path().join("whole");
    filled(&whole, 5);
    let whole = fs::read(&whole).expect("readable");
    let other = dir.path().join("other");
    drop(Database::create(&other).expect("a database of something else"));
    let other = fs::read(&other).expect("readable");
    for (what, bytes) in [
        ("empty", &b""[..]),
        ("text", b"lockkeeper-fence 1\n"),
        ("zeros", &[0; 8192]),
        ("cut in the header", &whole[..100]),
        ("cut in the middle", &whole[..whole.len() / 2]),
        ("of something else", &other),
    ] {
        let path = dir.path().join("marks.redb");
        fs::write(&path, bytes).expect("written");
        let error = MarkDatabase::open(&path).expect_err(what);
        assert!(matches!(error, MarksError::Damaged { .. }), "{what}: {error:?}");
        // The database of another program may be changed: redb writes to a database when opening and closing
        // it.
        let left = fs::read(&path).expect("readable") == bytes;
        assert!(left || what == "of something else", "{what}: changed");
    }
}

/// Flips one bit in each of some 200 bytes of a cleanly closed file, one at a time. A file that still opens
/// must return the written marks.
#[test]
fn bit_flip_never_lowers_a_mark() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("marks.redb");
    let kept = filled(&path, 60);
    let whole = fs::read(&path).expect("readable");
    let used: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
    let (mut refused, mut harmless) = (0, 0);
    // An odd step, so that the bytes are at many different offsets within pages and records.
    for at in used.iter().copied().step_by((used.len() / lockkeeper_corpus::size(25, 200, 200)) | 1) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, &flipped).expect("written");
        match MarkDatabase::open(&path) {
            Err(MarksError::Damaged { .. }) => refused += 1,
            Err(other) => panic!("byte {at}: {other:?}"),
            Ok(mut disk) => {
                for (resource, marks) in &kept {
                    match disk.load(resource) {
                        Ok(loaded) => assert_eq!(&loaded, marks, "byte {at}: {resource}"),
                        Err(error) => assert!(matches!(error, MarksError::Damaged { .. }), "{error:?}"),
                    }
                }
                harmless += 1;
            }
        }
    }
    println!("{refused} flips refused, {harmless} in bytes that nothing reads");
    assert!(refused > 0, "no flip met anything: this test shows nothing");
}
