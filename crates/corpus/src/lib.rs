//! What the tests of several crates share: the corpora of the fuzzers, inputs that reach different code and
//! are replayed in seconds; and the three sizes of exhaustive, random and simulated tests.
//!
//! A fuzz target is a function `fuzzing::run` of the crate whose decoders it tries, compiled for tests and
//! for `cargo fuzz` only. `fuzz` is a workspace of its own, since it needs a nightly compiler, and has one
//! line for each. Every decoder of bytes from outside is in a target; `docs/testing.md` lists them.

use std::fs;
use std::path::{Path, PathBuf};

/// The size of a test: `quick` with a plain `cargo test`, `usual` with `cargo xtask test`, `long` with `cargo
/// xtask test --long`.
///
/// # Panics
/// `LOCKKEEPER_TEST_SIZE` is set to another word than these three.
pub fn size<T>(quick: T, usual: T, long: T) -> T {
    match std::env::var("LOCKKEEPER_TEST_SIZE").as_deref() {
        Err(_) | Ok("quick") => quick,
        Ok("usual") => usual,
        Ok("long") => long,
        Ok(other) => panic!("LOCKKEEPER_TEST_SIZE is `{other}`: known are `quick`, `usual` and `long`"),
    }
}

/// The directory with the inputs of a fuzz target, one per file.
#[must_use]
pub fn directory(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs").join(target)
}

/// Runs a fuzz target on its seeds and on all stored inputs.
///
/// # Panics
/// If an input can't be read, if there are none, or if the target panics: the input's file is named first.
pub fn replay(target: &str, seeds: Vec<Vec<u8>>, run: fn(&[u8])) {
    for seed in seeds {
        run(&seed);
    }
    let directory = directory(target);
    let inputs =
        fs::read_dir(&directory).unwrap_or_else(|error| panic!("`{}`: {error}", directory.display()));
    let mut count = 0;
    for input in inputs {
        let path = input.expect("a directory entry").path();
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
        let named = NamedInput(&path);
        run(&bytes);
        std::mem::forget(named);
        count += 1;
    }
    assert!(count > 0, "`{}` has no inputs: `cargo xtask fuzz` makes them", directory.display());
}

/// Writes the seeds of a fuzz target beside its other inputs, for a fuzzer to begin with.
///
/// # Panics
/// If they can't be written.
pub fn store(target: &str, seeds: Vec<Vec<u8>>) {
    let directory = directory(target);
    fs::create_dir_all(&directory).unwrap_or_else(|error| panic!("`{}`: {error}", directory.display()));
    for (number, seed) in seeds.into_iter().enumerate() {
        let path = directory.join(format!("seed-{number}"));
        fs::write(&path, seed).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    }
}

/// Names the input if the target panics.
struct NamedInput<'path>(&'path Path);

impl Drop for NamedInput<'_> {
    fn drop(&mut self) {
        eprintln!("the input was `{}`", self.0.display());
    }
}
