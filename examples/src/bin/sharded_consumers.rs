//! Consumers that divide the shards of a queue among themselves.
//!
//! The problem: the messages of one customer must be processed in order, so two consumers must not work on
//! one shard. Consumers come and go; no shard may be forgotten, and few should change hands.
//!
//! Why partitions: each consumer owns about as many shards, each shard has one owner at most, and an owner is
//! told when another one is to take over.
//!
//! Why a fence: an owner that stalls may still store the position of its shard when the next one has read it.
//! The position is in a file with a fence: enter, read, work, write.
//!
//! `sharded_consumers lockkeeper://locks.example /srv/shards 12 40` processes 40 messages of each of the 12
//! shards that it owns, and ends once all shards are done.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{Fenced, Locks, Partition};
use lockkeeper_fence::{FileError, FileFence, Section};
use tokio::task::JoinSet;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, directory, shards, messages] =
        arguments().ok_or("usage: sharded_consumers LOCKS_URL DIRECTORY SHARDS MESSAGES")?;
    let (shards, messages): (u32, u64) = (shards.parse()?, messages.parse()?);
    let (locks, directory) = (Locks::connect(&locks).await?.fenced()?, PathBuf::from(directory));
    let mut member = locks.partitions("shards", shards).join().await?;
    let mut work = JoinSet::new();
    while !all_done(&directory, shards, messages)? {
        tokio::select! {
            shard = member.next() => {
                work.spawn(consume(shard?, directory.clone(), messages));
            }
            Some(consumed) = work.join_next() => println!("processed {}", consumed??),
            () = tokio::time::sleep(Duration::from_millis(100)) => {} // look whether the others are done
        }
    }
    member.leave().await?;
    while let Some(consumed) = work.join_next().await {
        println!("processed {}", consumed??);
    }
    Ok(())
}

/// Processes messages until the last one, or until the shard is to be given up. Returns how many.
async fn consume(shard: Partition<Fenced>, directory: PathBuf, messages: u64) -> Result<u64, FileError> {
    let fence = FileFence::new(position_of(&directory, shard.index()))?;
    let section = Section::exclusive(shard.token());
    fence.enter(section)?; // from here on writes of earlier owners are refused
    let mut position = position(fence.read()?);
    let mut processed = 0;
    while position < messages {
        tokio::select! {
            () = shard.leaving() => break,
            () = tokio::time::sleep(Duration::from_millis(2)) => {} // the work
        }
        position += 1;
        fence.write(section, position.to_string().as_bytes())?;
        processed += 1;
    }
    shard.leaving().await; // done, but it is ours until another one is to have it
    Ok(processed)
}

fn all_done(directory: &Path, shards: u32, messages: u64) -> Result<bool, FileError> {
    for shard in 0..shards {
        if position(FileFence::new(position_of(directory, shard))?.read()?) < messages {
            return Ok(false);
        }
    }
    Ok(true)
}

fn position_of(directory: &Path, shard: u32) -> PathBuf {
    directory.join(format!("shard-{shard}"))
}

fn position(content: Option<Vec<u8>>) -> u64 {
    content.and_then(|content| String::from_utf8(content).ok()?.parse().ok()).unwrap_or(0)
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
