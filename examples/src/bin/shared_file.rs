//! A file that several programs on one host update.
//!
//! The problem: each program reads the file, adds a line, and writes it back. If two do so at the same time,
//! one of the lines is lost.
//!
//! Why a lock: only one program at a time updates the file. `file:` needs no server: the lock is a file
//! descriptor, so it ends with its process, and a paused process keeps it.
//!
//! Why a fence, although a pause loses nothing: a descriptor lock passes to the next holder when the holder's
//! process is killed, even while children of that process are still writing, and an operator may break a
//! lock. And if the programs later move to two hosts with a lock service, only the URL changes. In addition,
//! `FileFence` replaces the file atomically: a reader never sees a partial file, and after a power loss the
//! file has either the old or the new content.
//!
//! `shared_file file:///var/lib/locks /srv/stock.txt "one more"`

use std::error::Error;

use lockkeeper::{HoldError, Locks, Token};
use lockkeeper_fence::{FileError, FileFence, Refused, Section};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, path, line] = arguments().ok_or("usage: shared_file LOCKS_URL FILE LINE")?;
    let locks = Locks::connect(&locks).await?.fenced()?;
    let fence = FileFence::new(&path)?;
    let lock = locks.mutex("shared-file");

    let added = lock.run(async |held| Ok::<_, HoldError>(append(&fence, held.token(), &line))).await?;
    match added {
        Ok(bytes) => println!("added; the file has {bytes} bytes"),
        // Not an I/O error: another program has acquired the lock since. Retry from the acquire, or give up.
        Err(FileError::Refused(Refused::Stale { offered, highest })) => {
            return Err(format!("too late: we are {offered}, and {highest} has been here").into());
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Adds a line to the file. Returns the file's new length in bytes.
fn append(fence: &FileFence, token: Token, line: &str) -> Result<usize, FileError> {
    let section = Section::exclusive(token);
    fence.enter(section)?; // from here on writes of earlier holders are refused
    let mut content = fence.read()?.unwrap_or_default(); // must be read after `enter`
    content.extend_from_slice(format!("{line}\n").as_bytes());
    fence.write(section, &content)?;
    Ok(content.len())
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
