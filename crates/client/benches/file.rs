//! Cost of a `file:` lock compared with its physical minimum: a bare flock, a counter written and synced, an
//! unlock.
//!
//! `cargo bench -p lockkeeper --bench file`. Both run alternately in one process, so that the disk's varying
//! latency affects both alike. The result is the ratio of the medians.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use lockkeeper::Locks;
use nix::fcntl::{Flock, FlockArg};

const ROUNDS: usize = 2_000;

fn bare_pair(lock: File, counter: &File, value: u64) -> (File, Duration) {
    let began = Instant::now();
    let held = Flock::lock(lock, FlockArg::LockExclusive).expect("a fresh file can be locked");
    counter.write_all_at(&value.to_le_bytes(), 0).expect("the counter can be written");
    counter.sync_data().expect("the counter can be synced");
    let lock = held.unlock().expect("a lock can be unlocked");
    (lock, began.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[expect(clippy::print_stdout, reason = "a bench prints its figures")]
fn main() {
    // On the disk of the build: in a tmpfs, fdatasync would cost nothing.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory can be made");
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.path().join(name))
            .expect("a file")
    };
    let (mut lock, counter) = (open("bare.lock"), open("bare.counter"));
    counter.set_len(1024).expect("the counter can be preallocated");
    counter.sync_all().expect("the counter can be synced");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let url = format!("file://{}/locks", dir.path().display());
        let locks = Locks::connect(&url).await.expect("a lock directory");
        let ours = locks.mutex("bench/uncontended");
        let (mut bare, mut pairs) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS as u64 {
            let (again, time) = bare_pair(lock, &counter, round);
            lock = again;
            bare.push(time);
            let began = Instant::now();
            ours.acquire().await.expect("uncontended").release().await.expect("held");
            pairs.push(began.elapsed());
        }
        let (bare, ours) = (median(bare), median(pairs));
        println!("{ROUNDS} rounds: bare flock + counter + fdatasync p50 {bare:?}, file: pair p50 {ours:?}");
        println!("ratio {:.2}", ours.as_secs_f64() / bare.as_secs_f64());
    });
}
