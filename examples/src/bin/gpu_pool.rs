//! A pool of GPUs: more jobs than cards, and each job must know which card is its own.
//!
//! The problem: a machine has a few cards and many users. A card that two jobs use runs out of memory for both.
//!
//! Why a semaphore with slots: a counting lock says *that* there is room, not *where*. Each permit here has a slot, from 0
//! to cards - 1, that no other holder has at the same time: it is the number of the card.
//!
//! Why a fence: a job that is paused past its lease wakes up when its card is another's, and writes its checkpoint over
//! that one's. The token goes with the slot: each slot has marks of its own, so the jobs on the other cards, which work
//! at the same time with tokens that are higher or lower, don't turn each other away.
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
            // Where a lock service gives permits without slots there is no card to tell.
            let slot = held.slot().expect("permits of a fenced lock have slots");
            let begun = now();
            train(Path::new(&directory), &job, slot, held.token()).await?;
            Ok::<_, FileError>(format!("{job} had card {slot} from {begun} to {}", now()))
        })
        .await?;
    println!("{report}");
    Ok(())
}

async fn train(directory: &Path, job: &str, slot: Slot, token: Token) -> Result<(), FileError> {
    // One fence for the pool; what it guards are the checkpoints beside it, one a card.
    let fence = FileFence::new(directory.join("gpus"))?;
    let checkpoint = directory.join(format!("card-{slot}"));
    let section = Section::permit(slot, token)?;
    fence.enter(section)?;
    for epoch in 1..=3 {
        // The card is at work.
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
