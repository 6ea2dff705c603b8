//! The cost of a log append, compared with its lower bound: one write of 128 bytes into a preallocated file,
//! synced.
//!
//! `cargo bench -p lockkeeper-server --bench log`. The variants alternate in one process, so that changes of
//! the disk's speed affect all alike; the result is the ratio of the medians (target: at most 1.5 for 64
//! commands).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use lockkeeper_replica::storage::{self, LogOptions};
use lockkeeper_server::disk::DataDirectory;
use lockkeeper_wire::store::{Entry, Founding, HardState, Record};

const ROUNDS: u64 = 1_000;
const COMMAND_BYTES: usize = 64;
const BATCHES: [usize; 3] = [1, 64, 1024];

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

/// Returns the quantile `part` (0 to 1) of `times`.
fn quantile(times: &mut [Duration], part: f64) -> Duration {
    times.sort_unstable();
    times[(times.len() as f64 * part) as usize]
}

fn bare_file(path: &std::path::Path) -> File {
    let file = OpenOptions::new().write(true).create_new(true).open(path).expect("a fresh file");
    file.write_all_at(&vec![0; ROUNDS as usize * 512], 0).expect("room on the disk");
    file.sync_all().expect("a sound disk");
    file
}

#[expect(clippy::print_stdout, reason = "a bench prints its figures")]
fn main() {
    // On the disk that has the build directory: in a memory filesystem `fdatasync` would cost nothing.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory can be made");
    let bare = bare_file(&dir.path().join("bare"));
    let disk = DataDirectory::own(dir.path().join("data")).expect("nobody has it");
    let founding =
        Founding { cluster: vec![1; 16], node: 1, incarnation: vec![2; 16], ..Founding::default() };
    let mut log = storage::found(&disk, LogOptions::default(), &founding).expect("it is empty").log;
    let maker = log.spare_maker();

    let mut floor = Vec::new();
    let mut appends = BATCHES.map(|_| Vec::new());
    let mut index = 0;
    for round in 0..ROUNDS {
        if log.wants_spare() {
            log.give_spare(maker.make().expect("a sound disk")).run(&disk).expect("a sound disk");
        }
        floor.push(timed(|| {
            bare.write_all_at(&[1; 128], round * 512).expect("a sound disk");
            bare.sync_data().expect("a sound disk");
        }));
        for (batch, times) in BATCHES.into_iter().zip(&mut appends) {
            index += 1;
            let data = vec![round as u8; batch * COMMAND_BYTES].into();
            let record = Record {
                hard_state: Some(HardState { term: 1, vote: 1, commit: index - 1 }),
                entries: vec![Entry { index, term: 1, kind: 1, data }],
            };
            times.push(timed(|| log.append(&record).expect("a sound disk")));
        }
    }
    let base = quantile(&mut floor, 0.5);
    println!("{ROUNDS} rounds: bare write + fdatasync p50 {base:?}, p99 {:?}", quantile(&mut floor, 0.99));
    for (batch, mut times) in BATCHES.into_iter().zip(appends) {
        let (half, most) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
        println!(
            "append of {batch} x {COMMAND_BYTES} B: p50 {half:?}, p99 {most:?}, ratio {:.2}",
            half.as_secs_f64() / base.as_secs_f64()
        );
    }
}
