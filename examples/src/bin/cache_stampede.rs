//! A cache stampede: one computes, the others wait for it.
//!
//! The problem: a page that takes a second to compute is cached for a minute. When it expires, every request that misses
//! it computes it, all at once, and the machine that was fast enough thanks to the cache is not.
//!
//! Why a lock: whoever gets it computes; the others wait and find the page in the cache. They look again *after* they
//! have the lock, since by then it is usually there.
//!
//! Why no fence: this lock is for speed only. If a holder stalls past its lease, somebody else computes the same page a
//! second time, and both write the same thing. Nothing is wrong then, only slower. So the lock needs no tokens, and its
//! failure is no reason to fail: without it the page is computed all the same. (If an older page must never replace a
//! newer one, it is not such a lock: take the token along.)
//!
//! `cache_stampede redis://cache.example redis://cache.example front-page`: both may be the same Redis.

use std::error::Error;
use std::time::Duration;

use lockkeeper::{Guard, Locks, Unfenced, Wait};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

const FRESH_S: u64 = 60;
/// About three times what the computing takes: if its machine dies, the others go on soon.
const TTL: Duration = Duration::from_secs(3);
/// Who waited for so long computes by itself.
const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, cache, page] = arguments().ok_or("usage: cache_stampede LOCKS_URL REDIS_URL PAGE")?;
    let mut cache = redis::Client::open(cache)?.get_multiplexed_async_connection().await?;
    let key = format!("cache/{page}");

    let (how, content) = match cache.get(&key).await? {
        Some(content) => ("from the cache", content),
        None => missed(&locks, &mut cache, &page, &key).await?,
    };
    println!("{how}: {content}");
    Ok(())
}

async fn missed(
    locks: &str,
    cache: &mut MultiplexedConnection,
    page: &str,
    key: &str,
) -> Result<(&'static str, String), Box<dyn Error>> {
    let guard = match take(locks, key).await {
        Ok(guard) => Some(guard),
        Err(error) => {
            eprintln!("computing without the lock: {error}");
            None
        }
    };
    // The next one finds it too.
    if let Some(content) = cache.get(key).await? {
        give_back(guard).await;
        return Ok(("waited", content));
    }
    let content = compute(cache, page).await?;
    let () = cache.set_ex(key, &content, FRESH_S).await?;
    give_back(guard).await;
    Ok(("computed", content))
}

/// A lock that was lost in the meantime is no error here.
async fn give_back(guard: Option<Guard<Unfenced>>) {
    if let Some(guard) = guard
        && let Err(error) = guard.release().await
    {
        eprintln!("released late: {error}");
    }
}

/// A long-running program connects once; what matters here is that any failure only costs the lock.
async fn take(locks: &str, key: &str) -> Result<Guard<Unfenced>, Box<dyn Error>> {
    let locks = Locks::connect(locks).await?;
    Ok(locks.mutex(format!("locks/{key}")).ttl(TTL).wait(Wait::For(PATIENCE)).acquire().await?)
}

/// The slow part. It counts itself, for whoever wonders.
async fn compute(cache: &mut MultiplexedConnection, page: &str) -> redis::RedisResult<String> {
    let times: u64 = cache.incr(format!("computed/{page}"), 1).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(format!("{page}, computed {times} times so far"))
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
