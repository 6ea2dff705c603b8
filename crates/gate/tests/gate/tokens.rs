//! The lock service's word on a token, in addition to the marks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_core::Token;
use lockkeeper_gate::{Rules, TokenCheck};

use crate::rig::{Running, Upstream};

/// Says that the tokens from 10 to 19 of `bank/a` are current, and does not answer for 99.
fn lock_service(asked: Arc<AtomicU64>) -> TokenCheck {
    Arc::new(move |lock: String, token: Token| {
        asked.fetch_add(1, Ordering::SeqCst);
        let answer = match token.get() {
            99 => Err("it does not answer".to_owned()),
            number => Ok(lock == "bank/a" && (10..20).contains(&number)),
        };
        Box::pin(std::future::ready(answer))
    })
}

#[tokio::test]
async fn token_that_is_not_current_is_refused_and_raises_no_mark() {
    let upstream = Upstream::start().await;
    let asked = Arc::new(AtomicU64::new(0));
    let rules = "[[rule]]\npath = \"/{id}\"\nlock = \"bank/{id}\"\n";
    let gate = Running::with(&upstream.url(), |options| {
        options.rules = Rules::parse(rules).unwrap();
        options.tokens = Some(lock_service(asked.clone()));
    })
    .await;
    let put = async |path: &str, token: u64| {
        let answer = gate.ask(&format!("PUT /{path}|Fencing-Token: {token}")).await;
        (answer.status, answer.body)
    };
    assert_eq!(put("a", 12).await.0, 200);
    let (status, body) = put("a", 9_007_199_254_740_991).await;
    assert_eq!(status, 412);
    assert!(body.contains("gate:not-current") && body.contains("bank/a"), "{body}");
    assert_eq!(put("a", 12).await.0, 200, "a token that nobody was granted shuts nobody out");
    assert_eq!(put("b", 12).await.0, 412, "another lock's token");
    let (status, body) = put("a", 99).await;
    assert_eq!(status, 503);
    assert!(body.contains("locks-unreachable") && !body.contains("does not answer"), "{body}");
    assert_eq!(put("a", 13).await.0, 200);
    let before = asked.load(Ordering::SeqCst);
    let (status, body) = put("a", 12).await;
    assert!(
        status == 412 && body.contains("fence:stale"),
        "current at the lock service, and stale here: {body}"
    );
    assert_eq!(asked.load(Ordering::SeqCst), before + 1);
    assert_eq!(gate.ask("GET /a").await.status, 200);
    assert_eq!(asked.load(Ordering::SeqCst), before + 1, "nobody is asked about free requests");
}
