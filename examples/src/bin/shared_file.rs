//! A file that several programs on one host change.
//!
//! The problem: each reads the file, adds to it, and writes it back. Two at once, and one of the additions is gone.
//!
//! Why a lock: one at a time. `file:` needs no server: the lock is a descriptor, so it ends with its process, and a
//! paused process keeps it.
//!
//! Why a fence, where a pause loses nothing: a lock of a descriptor passes to the next when its process is killed, also
//! while what it has started is still writing, and an operator may break a lock. And the day the programs move to two
//! hosts with a lock service between them, only the URL changes. `FileFence` replaces the file as a whole besides: a
//! reader never sees half of it, and a power loss leaves the old content or the new.
//!
//! `shared_file file:///var/lib/locks /srv/stock.txt "one more"`

use std::error::Error;

use lockkeeper::{Locks, RunError};
use lockkeeper_fence::{FileError, FileFence, Refused, Section};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, path, line] = arguments().ok_or("usage: shared_file LOCKS_URL FILE LINE")?;
    let locks = Locks::connect(&locks).await?.fenced()?;
    let fence = FileFence::new(&path)?;
    let lock = locks.mutex("shared-file");

    let added = lock
        .run(async |held| {
            let section = Section::exclusive(held.token());
            fence.enter(section)?; // from here on no earlier holder can write
            let mut content = fence.read()?.unwrap_or_default(); // and only now it is read
            content.extend_from_slice(format!("{line}\n").as_bytes());
            fence.write(section, &content)?;
            Ok::<_, FileError>(content.len())
        })
        .await;
    match added {
        Ok(bytes) => println!("added; the file has {bytes} bytes"),
        // Not a fault of the disk: somebody else holds the lock by now. Start again from the acquire, or give up.
        Err(RunError::Body(FileError::Refused(Refused::Stale { offered, highest }))) => {
            return Err(format!("too late: we are {offered}, and {highest} has been here").into());
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
