//! Connection attempts to the addresses of one service, one after the other without waiting for each (RFC
//! 8305).

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long an attempt runs before the next one starts in parallel: an address that drops packets costs this
/// time, and not the time limit of an attempt.
pub const HEAD_START: Duration = Duration::from_millis(250);

/// Returns the first success. The next attempt begins once the last one has failed, or after `head_start`.
/// Attempts have their own time limits; the remaining ones are dropped after a success.
///
/// # Errors
/// The errors of all, in the order of the attempts.
pub async fn first_success<A, T, E>(
    attempts: impl IntoIterator<Item = A>,
    head_start: Duration,
) -> Result<T, Vec<E>>
where
    A: Future<Output = Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let mut attempts = attempts.into_iter().enumerate().peekable();
    let mut running = JoinSet::new();
    let mut errors = Vec::new();
    loop {
        if let Some((index, attempt)) = attempts.next() {
            running.spawn(async move { (index, attempt.await) });
        }
        let is_last = attempts.peek().is_none();
        loop {
            let ended = match is_last {
                true => running.join_next().await,
                false => match timeout(head_start, running.join_next()).await {
                    Ok(ended) => ended,
                    Err(_) => break,
                },
            };
            match ended {
                Some(Ok((_, Ok(success)))) => return Ok(success),
                Some(Ok((index, Err(error)))) => errors.push((index, error)),
                // The runtime is shutting down.
                Some(Err(_)) => {}
                None if is_last => {
                    errors.sort_by_key(|(index, _)| *index);
                    return Err(errors.into_iter().map(|(_, error)| error).collect());
                }
                None => {}
            }
            if !is_last {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::Pin;

    use super::*;

    type Attempt = Pin<Box<dyn Future<Output = Result<u32, &'static str>> + Send>>;

    fn swallows() -> Attempt {
        Box::pin(pending())
    }

    fn ends(result: Result<u32, &'static str>) -> Attempt {
        Box::pin(ready(result))
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_without_an_answer_delays_the_next_one_by_the_head_start_only() {
        let began = tokio::time::Instant::now();
        let attempts = [swallows(), ends(Err("refused")), swallows(), ends(Ok(3))];
        assert_eq!(first_success(attempts, HEAD_START).await, Ok(3));
        assert_eq!(began.elapsed(), 2 * HEAD_START);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_first_attempt_still_counts() {
        let slow: Attempt = Box::pin(async {
            tokio::time::sleep(3 * HEAD_START).await;
            Ok(1)
        });
        assert_eq!(first_success([slow, swallows()], HEAD_START).await, Ok(1));
    }

    #[tokio::test]
    async fn errors_are_in_the_order_of_the_attempts() {
        let attempts = [ends(Err("one")), ends(Err("two"))];
        assert_eq!(first_success(attempts, HEAD_START).await, Err(vec!["one", "two"]));
        assert_eq!(first_success(Vec::<Attempt>::new(), HEAD_START).await, Err(vec![]));
    }
}
