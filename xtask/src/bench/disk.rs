//! Disk speed during the run: the latency of an fdatasync.
//!
//! Responsible for one number, measured before and after the run, and before each measurement of a system. A
//! service that syncs to disk can't be faster than the disk at that moment, and a measurement on a busy disk
//! can't be compared with one on an idle disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::TaskResult;
use crate::bench::maths::percentile;

const RECORD: [u8; 128] = [0x5a; 128];
const RECORDS: u64 = 4096;
/// The duration of the disk measurements before and after the run.
pub(crate) const LONG: Duration = Duration::from_secs(1);
/// The duration of the disk measurement before each measurement of a system.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

/// The median latency of a 128-byte write with fdatasync into a preallocated file, in microseconds. `at_once`
/// threads write to separate files concurrently: one for each node of a cluster on this disk.
pub(crate) fn fdatasync_p50_us(folder: &Path, duration: Duration, at_once: usize) -> TaskResult<f64> {
    let writers: Vec<JoinHandle<TaskResult<Vec<u64>>>> = (0..at_once)
        .map(|number| {
            let path = folder.join(format!("fdatasync-{number}"));
            std::thread::spawn(move || probe(&path, duration))
        })
        .collect();
    let mut samples = Vec::new();
    for writer in writers {
        samples.extend(writer.join().map_err(|_| "a thread that measures the disk has died")??);
    }
    samples.sort_unstable();
    let p50 = percentile(&samples, 50).ok_or("the disk took no write in that time")?;
    Ok(p50 as f64 / 1e3)
}

/// Runs [`measure`] on a temporary file.
fn probe(path: &Path, duration: Duration) -> TaskResult<Vec<u64>> {
    let samples = measure(path, duration)
        .map_err(|error| format!("cannot measure the disk by {}: {error}", path.display()))?;
    fs::remove_file(path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
    Ok(samples)
}

/// Returns the latency of each write with its sync, in nanoseconds.
fn measure(path: &Path, duration: Duration) -> std::io::Result<Vec<u64>> {
    let file = File::create(path)?;
    file.write_all_at(&vec![0; RECORD.len() * RECORDS as usize], 0)?;
    file.sync_all()?;
    let mut samples = Vec::new();
    let began = Instant::now();
    while began.elapsed() < duration {
        let at = samples.len() as u64 % RECORDS * RECORD.len() as u64;
        let start = Instant::now();
        file.write_all_at(&RECORD, at)?;
        file.sync_data()?;
        samples.push(start.elapsed().as_nanos() as u64);
    }
    Ok(samples)
}
