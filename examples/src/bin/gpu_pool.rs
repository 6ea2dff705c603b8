//! A pool of GPUs: more jobs than cards, and each job must know which card it has.
//!
//! The problem: a machine has a few cards and many users. Two jobs on the same card both run out of memory.
//!
//! Why a semaphore with slots: a counting lock guarantees only *that* a card is free, not *which*. Each
//! permit here has a slot, from 0 to cards - 1, that no other holder has at the same time: the slot is the
//! card's number.
//!
//! Why a fence: a job that is paused past its lease resumes when its card belongs to another job, and
//! overwrites that job's checkpoint. The token is checked per slot: each slot has its own marks, so that
//! concurrent jobs on other cards, whose tokens are higher or lower, do not exclude each other.
//!
//! `gpu_pool lockkeeper://locks.example /var/lib/gpus 4 train-resnet`

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::{Locks, Slot, Token};
use lockkeeper_fence::{FileError, FileFence, Section};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, directory, cards, job] =
        arguments().ok_or("usage: gpu_pool LOCKS_URL DIRECTORY CARDS JOB")?;
    let locks = Locks::connect(&locks).await?.fenced()?;
    let pool = locks.semaphore("gpus", cards.parse()?).meta("job", &job);

    let report = pool
        .run(async |held| {
            // A lock service whose permits have no slots can't assign a card.
            let slot = held.slot().expect("permits of a fenced lock have slots");
            let begun = now();
            train(Path::new(&directory), &job, slot, held.token()).await?;
            Ok::<_, Box<dyn Error>>(format!("{job} had card {slot} from {begun} to {}", now()))
        })
        .await?;
    println!("{report}");
    Ok(())
}

async fn train(directory: &Path, job: &str, slot: Slot, token: Token) -> Result<(), FileError> {
    // One fence for the pool. It guards the checkpoints next to it, one per card.
    let fence = FileFence::new(directory.join("gpus"))?;
    let checkpoint = directory.join(format!("card-{slot}"));
    let section = Section::permit(slot, token)?;
    fence.enter(section)?;
    for epoch in 1..=3 {
        // Stands for the computation on the card.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let saved =
            fence.write_with(section, || fs::write(&checkpoint, format!("{job}, epoch {epoch}\n")))?;
        saved.map_err(|source| FileError::Io { doing: "save", path: checkpoint.clone(), source })?;
    }
    Ok(())
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
