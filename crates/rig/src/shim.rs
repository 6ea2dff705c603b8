//! Faults of the machine for one process: a disk that fails or is slow, clocks that are wrong.
//!
//! Responsible for `shim.c`: compiling it, and changing its numbers. [`Shim::environment`] loads it into a
//! process.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::time::TimeValLike;
use nix::time::ClockId;

use crate::program::Program;

/// What [`Shim`] is compiled with.
pub const COMPILER: Program = Program { name: "cc", package: "gcc libc6-dev" };
const SOURCE: &str = include_str!("shim.c");

/// The numbers that control `shim.c`, by index.
#[derive(Clone, Copy)]
pub enum Number {
    /// The extra duration of each sync, in milliseconds.
    DelayMs = 0,
    /// `n`: the n-th sync from now on fails, and all after it; 0: none fails.
    FailIn = 1,
    /// The errno of failing syncs.
    Error = 2,
    /// A counter of all calls of sync.
    Syncs = 3,
    /// A counter of failed syncs.
    Failed = 4,
    /// The lead of the wall clock over the true time, in seconds.
    AheadSec = 5,
    /// Not 0: syncs succeed without being done.
    Lie = 6,
    /// What `CLOCK_BOOTTIME` runs faster than the true time, in millionths of it ([`Shim::set_boot_rate`]).
    BootPpm = 7,
    /// When that began, in nanoseconds of the true clock.
    BootFrom = 8,
    /// The same of the wall clock ([`Shim::set_wall_rate`]).
    WallPpm = 9,
    /// When that began, in nanoseconds of the true clock.
    WallFrom = 10,
}

const NUMBERS: u64 = 11;

/// The shim, a library that replaces the functions of libc for syncs and clocks in the process that loads
/// it.
pub struct Shim {
    library: PathBuf,
    path: PathBuf,
    control: File,
}

impl Shim {
    /// Compiles the shim into `folder`. All numbers are 0 at first: then the shim changes nothing.
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

    /// The environment variables that load the shim into a process and its children.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("LK_RIG_SHIM", &self.path)]
    }

    /// The present value of a number.
    #[must_use]
    pub fn get(&self, number: Number) -> i64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, number as u64 * 8).expect("our own file has all numbers");
        i64::from_ne_bytes(bytes)
    }

    /// Changes a number, with immediate effect.
    pub fn set(&self, number: Number, value: i64) {
        self.control
            .write_all_at(&value.to_ne_bytes(), number as u64 * 8)
            .expect("our own file takes numbers");
    }

    /// From now on `CLOCK_BOOTTIME` runs faster than the true time by this many millionths of it, or slower
    /// for a negative number; 0: it is right again.
    pub fn set_boot_rate(&self, ppm: i64) {
        self.set_rate(ClockId::CLOCK_BOOTTIME, (Number::BootPpm, Number::BootFrom), ppm);
    }

    /// The same for the wall clock.
    pub fn set_wall_rate(&self, ppm: i64) {
        self.set_rate(ClockId::CLOCK_REALTIME, (Number::WallPpm, Number::WallFrom), ppm);
    }

    fn set_rate(&self, clock: ClockId, (rate, from): (Number, Number), ppm: i64) {
        let now = clock.now().expect("each kernel has this clock");
        self.set(rate, 0);
        self.set(from, now.num_nanoseconds());
        self.set(rate, ppm);
    }
}

/// The wall clock of one process.
#[derive(Clone, Copy)]
pub struct ShimClock<'shim>(pub(crate) &'shim Shim);

impl ShimClock<'_> {
    /// Sets the clock forward, or back for a negative number of seconds, with immediate effect.
    pub fn step(self, seconds: i64) {
        self.0.set(Number::AheadSec, self.ahead() + seconds);
    }

    /// The clock's lead over the true time, in seconds.
    #[must_use]
    pub fn ahead(self) -> i64 {
        self.0.get(Number::AheadSec)
    }
}
