//! Faults of the machine for one process: a disk that fails or is slow, a wall clock that jumps.
//!
//! Responsible for `shim.c`: compiling it, and its numbers. A process has it by [`Shim::environment`].

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::Program;

const COMPILER: Program = Program { name: "cc", package: "gcc libc6-dev" };
const SOURCE: &str = include_str!("shim.c");

/// The numbers of `shim.c`, by their place.
#[derive(Clone, Copy)]
pub enum Number {
    /// Each sync takes so many milliseconds longer.
    DelayMs = 0,
    /// `n`: the n-th sync from now on fails, and all after it; 0: none does.
    FailIn = 1,
    /// With this errno.
    Error = 2,
    /// Counted: all syncs that were asked for.
    Syncs = 3,
    /// Counted: those that failed.
    Failed = 4,
    /// The wall clock is so many seconds ahead of the true one.
    AheadSec = 5,
}

const NUMBERS: u64 = 6;

/// The shim before the calls of one process.
pub struct Shim {
    library: PathBuf,
    path: PathBuf,
    control: File,
}

impl Shim {
    /// Compiles it into `folder`; all numbers are 0, which changes nothing.
    ///
    /// # Panics
    /// There is no C compiler.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let (source, library) = (folder.join("shim.c"), folder.join("shim.so"));
        fs::write(&source, SOURCE)
            .unwrap_or_else(|error| panic!("cannot write to {}: {error}", folder.display()));
        let compiled = Command::new(COMPILER.path())
            .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output()
            .expect("the C compiler can be started");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let path = folder.join("shim.control");
        let control = File::options().read(true).write(true).create_new(true).open(&path);
        let control = control.unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        control.set_len(NUMBERS * 8).expect("a small file has room");
        Self { library, path, control }
    }

    /// What the process must have in its environment. Its children have it too.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("LK_RIG_SHIM", &self.path)]
    }

    /// One of its numbers, as it is now.
    #[must_use]
    pub fn get(&self, number: Number) -> i64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, number as u64 * 8).expect("our own file has all numbers");
        i64::from_ne_bytes(bytes)
    }

    /// Changes one of its numbers, at once.
    pub fn set(&self, number: Number, value: i64) {
        self.control
            .write_all_at(&value.to_ne_bytes(), number as u64 * 8)
            .expect("our own file takes numbers");
    }
}

/// The wall clock of one process.
#[derive(Clone, Copy)]
pub struct Clock<'shim>(pub(crate) &'shim Shim);

impl Clock<'_> {
    /// Sets it forward, or back for a negative number of seconds. What is asked of the process from now on has it.
    pub fn step(self, seconds: i64) {
        self.0.set(Number::AheadSec, self.ahead() + seconds);
    }

    /// How many seconds it is ahead of the true one.
    #[must_use]
    pub fn ahead(self) -> i64 {
        self.0.get(Number::AheadSec)
    }
}
