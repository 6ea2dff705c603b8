//! A cache stampede: one client computes a missing entry, the others wait for it.
//!
//! The problem: a page that takes a second to compute is cached for a minute. When it expires, every request
//! that misses the cache computes the page at the same time, which overloads a machine that is fast enough
//! only with the cache.
//!
//! Why a lock: its holder computes the page; the others wait and then find the page in the cache. They check
//! the cache again *after* they have the lock, since by then the page is usually there.
//!
//! Why no fence: this lock is only an optimisation. If a holder stalls past its lease, another client
//! computes the same page a second time, and both write the same content: slower, but correct. So the lock
//! needs no tokens, and an error of the lock is not fatal: the page is then computed without it. (If an older
//! page must never replace a newer one, the lock is needed for correctness: then use the token as a fence.)
//!
//! `cache_stampede redis://cache.example redis://cache.example front-page`: both URLs may name the same
//! Redis.

use std::error::Error;
use std::time::Duration;

use lockkeeper::{Guard, Locks, Unfenced, Wait};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

const FRESH_S: u64 = 60;
/// About three times the duration of the computation: if the holder's machine dies, the others continue soon.
const TTL: Duration = Duration::from_secs(3);
/// A client that has waited this long computes the page itself.
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
    // The previous holder may have stored the page in the meantime.
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

/// A long-running program would connect once. Any failure here only costs the optimisation.
async fn take(locks: &str, key: &str) -> Result<Guard<Unfenced>, Box<dyn Error>> {
    let locks = Locks::connect(locks).await?;
    Ok(locks.mutex(format!("locks/{key}")).ttl(TTL).wait(Wait::For(PATIENCE)).acquire().await?)
}

/// The slow part. It counts its calls in Redis, as evidence.
async fn compute(cache: &mut MultiplexedConnection, page: &str) -> redis::RedisResult<String> {
    let times: u64 = cache.incr(format!("computed/{page}"), 1).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(format!("{page}, computed {times} times so far"))
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
