//! Tokens of `?fencing=counter`: drawn in the same atomic step as the SET, and higher than before after any
//! data loss. Servers whose settings can lose the counter are refused.

use lockkeeper::{BreakOrder, Broken, Locks, Token, TokenStatus};
use lockkeeper_rig::Redis;

use crate::support::{SECOND, client, durable, loss, name, with_tokens};

const COUNTER: &str = "{jobs}:lockkeeper:token";

async fn next(locks: &Locks) -> Token {
    let held = locks.mutex("jobs").acquire().await.unwrap();
    let token = held.token_hint().unwrap();
    held.release().await.unwrap();
    token
}

#[tokio::test]
async fn a_token_is_drawn_with_the_set_and_only_then() {
    let redis = durable();
    let locks = with_tokens(&redis, "holder").await;
    let held = locks.mutex("jobs").acquire().await.unwrap();
    let token = held.token_hint().unwrap();
    assert_eq!(redis.cli(&["GET", COUNTER]), token.to_string());
    assert_eq!(redis.cli(&["GET", "jobs"]).split(':').nth(4), Some(token.to_string().as_str()));
    // A refused attempt draws no token.
    assert!(locks.mutex("jobs").try_acquire().await.unwrap().is_none());
    assert!(locks.semaphore("jobs", 2).try_acquire().await.unwrap().is_none());
    assert_eq!(redis.cli(&["GET", COUNTER]), token.to_string());
    // The guard's own token never changes.
    held.verify().await.unwrap();
    assert_eq!(held.token_hint(), Some(token));
    held.release().await.unwrap();
    let days = redis.cli(&["PTTL", COUNTER]).parse::<u64>().unwrap() / 86_400_000;
    assert!((29..=30).contains(&days), "it is forgotten some time: {days} days");
}

/// After the loss of the counter, tokens must not restart from a lower value.
#[tokio::test]
async fn tokens_rise_after_any_data_loss() {
    let redis = durable();
    let locks = with_tokens(&redis, "holder").await;
    let mut last = next(&locks).await;
    for forget in ["nothing", "FLUSHALL", "DEL", "a restart", "SCRIPT FLUSH", "everything"] {
        match forget {
            "FLUSHALL" => drop(redis.cli(&["FLUSHALL"])),
            "DEL" => drop(redis.cli(&["DEL", COUNTER])),
            "a restart" => redis.restart(),
            "SCRIPT FLUSH" => drop(redis.cli(&["SCRIPT", "FLUSH"])),
            "everything" => redis.wipe(),
            _ => {}
        }
        let token = next(&locks).await;
        assert!(token > last, "after {forget}: {token} is not above {last}");
        last = token;
    }
    assert!(last.get() < 1 << 53);
}

/// A counter that is ahead of the clock is incremented by one.
#[tokio::test]
async fn a_counter_that_is_ahead_of_the_clock_counts_on() {
    let redis = durable();
    let locks = with_tokens(&redis, "holder").await;
    let ahead = next(&locks).await.get() + 1_000_000_000_000;
    redis.cli(&["SET", COUNTER, &ahead.to_string()]);
    assert_eq!(next(&locks).await.get(), ahead + 1);
    assert_eq!(next(&locks).await.get(), ahead + 2);
}

#[tokio::test]
async fn tokens_are_refused_where_they_can_not_last() {
    let why = async |settings: &[&str], forced: bool| {
        let redis = Redis::with(settings);
        let force = if forced { "&force=true" } else { "" };
        let connected = Locks::connect(&format!("{}?fencing=counter{force}", redis.url())).await;
        connected.map(|locks| locks.fenced().map(drop).unwrap()).map_err(|error| error.to_string())
    };
    let aof = ["--appendonly", "yes"];
    let evicts = ["--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    // Managed servers forbid CONFIG.
    let silent = ["--appendonly", "yes", "--rename-command", "CONFIG", ""];
    for (settings, word) in [(&[][..], "appendonly"), (&evicts, "allkeys-lru"), (&silent, "CONFIG GET")] {
        let error = why(settings, false).await.unwrap_err();
        assert!(error.contains(word) && error.contains("force=true"), "{settings:?}: {error}");
        assert_eq!(why(settings, true).await, Ok(()), "{settings:?}");
    }
    assert_eq!(why(&aof, false).await, Ok(()));
}

#[tokio::test]
async fn without_a_counter_token_operations_fail_and_name_both_alternatives() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let held = locks.mutex("jobs").acquire().await.unwrap();
    assert_eq!(held.token_hint(), None);
    let order = BreakOrder {
        name: name("jobs"),
        token: Token::MIN,
        reason: "why".into(),
        by: "who".into(),
        now: true,
    };
    let errors = [
        locks.clone().fenced().map(drop).unwrap_err().to_string(),
        locks.check_token("jobs", Token::MIN).await.unwrap_err().to_string(),
        locks.break_hold(order).await.unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.contains("?fencing=counter") && error.contains("lockkeeper://"), "{error}");
    }
    held.verify().await.unwrap();
}

#[tokio::test]
async fn the_status_of_a_token_follows_its_hold() {
    let redis = durable();
    let locks = with_tokens(&redis, "holder").await;
    let before = next(&locks).await;
    let held = locks.mutex("jobs").acquire().await.unwrap();
    let token = held.token_hint().unwrap();
    let status = async |token: Token| locks.check_token("jobs", token).await.unwrap();
    assert_eq!(status(token).await, TokenStatus::Current);
    assert_eq!(status(before).await, TokenStatus::NotCurrent { live: vec![token] });
    assert_eq!(status(Token::new(token.get() + 1).unwrap()).await, TokenStatus::NeverIssued);
    held.release().await.unwrap();
    assert_eq!(status(token).await, TokenStatus::NotCurrent { live: vec![] });
}

/// Rules B1 to B3 (docs/table-rules.md), for an exclusive hold and for one permit of several.
#[tokio::test]
async fn a_break_ends_the_hold_with_that_token_and_no_other() {
    let redis = durable();
    let (locks, operator) = (with_tokens(&redis, "holder").await, with_tokens(&redis, "operator").await);
    for permits in [false, true] {
        let lock = || if permits { locks.semaphore("jobs", 2) } else { locks.mutex("jobs") };
        let other = if permits { Some(lock().acquire().await.unwrap()) } else { None };
        let held = lock().ttl(60 * SECOND).acquire().await.unwrap();
        let token = held.token_hint().unwrap();
        let order = |token, now| BreakOrder {
            name: name("jobs"),
            token,
            reason: "it hangs".into(),
            by: "an operator\nof two lines".into(),
            now,
        };
        let wrong = Token::new(token.get() - 1).unwrap();
        let Broken::NotCurrent { live } = operator.break_hold(order(wrong, true)).await.unwrap() else {
            panic!("nobody has that token")
        };
        assert!(live.contains(&token) && live.len() == 1 + usize::from(permits), "{live:?}");
        assert_eq!(operator.break_hold(order(token, false)).await.unwrap(), Broken::Done);
        assert_eq!(loss(&held).await, lockkeeper::LossCause::Broken);
        let seen = operator.inspect("jobs").await.unwrap();
        let broken = seen.holds.iter().find(|holder| holder.token == Some(token)).unwrap();
        assert_eq!(
            broken.state,
            lockkeeper::HolderState::Revoked {
                reason: "it hangs".into(),
                by: "an operator\nof two lines".into()
            }
        );
        assert_eq!(operator.break_hold(order(token, true)).await.unwrap(), Broken::Done);
        assert!(lock().try_acquire().await.unwrap().is_some(), "now it is free");
        if let Some(other) = other {
            other.verify().await.unwrap();
        }
        drop(held);
    }
}

/// Rule B2 (docs/table-rules.md): of the breaks, only one with `now` opens a closed hold.
#[tokio::test]
async fn a_closed_hold_is_opened_only_by_a_break_with_now() {
    let redis = durable();
    let locks = with_tokens(&redis, "holder").await;
    let held = locks.mutex("jobs").keep_closed(600 * SECOND).acquire().await.unwrap();
    let token = held.token_hint().unwrap();
    held.release().await.unwrap();
    let order = |now| BreakOrder { name: name("jobs"), token, reason: "why".into(), by: "who".into(), now };
    assert_eq!(locks.break_hold(order(false)).await.unwrap(), Broken::StillClosed);
    assert!(locks.mutex("jobs").try_acquire().await.unwrap().is_none());
    assert_eq!(locks.break_hold(order(true)).await.unwrap(), Broken::Done);
    assert!(locks.mutex("jobs").try_acquire().await.unwrap().is_some());
}
