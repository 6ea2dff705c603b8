//! Server faults: a forgotten script, crashes, hangs, full memory, eviction, demotion to replica.

use std::time::{Duration, Instant};

use lockkeeper_fence::redis::{RedisCommand, RedisFence, RedisFenceError};
use lockkeeper_fence::{Marks, Refused, Section};
use lockkeeper_rig::Redis;
use redis::{AsyncConnectionConfig, Client};

use super::{connected, exclusive, fence, lasting_server, set};
use crate::suite::token;

async fn connect(url: &str) -> Result<Vec<bool>, RedisFenceError> {
    let fence = RedisFence::connect(connected(url).await).await?;
    Ok(fence.findings().await?.into_iter().map(|finding| finding.spoils).collect())
}

#[tokio::test]
async fn script_is_resent_to_a_server_that_lost_it() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    for value in 5..8 {
        redis.cli(&["SCRIPT", "FLUSH"]);
        fence
            .write("stock", exclusive(value), &[RedisCommand::new("INCR").key("stock")])
            .await
            .expect("higher");
    }
    assert_eq!(redis.cli(&["GET", "stock"]), "3", "each ran once");
}

#[tokio::test]
async fn acknowledged_writes_survive_a_killed_server() {
    let redis = lasting_server();
    for value in 1..=5 {
        let fence = fence(&redis).await;
        fence.enter("stock", exclusive(2 * value)).await.expect("higher");
        fence.write("other", exclusive(value), &[set("other", value)]).await.expect("higher");
        redis.kill();
        redis.start_again();
        let fence = self::fence(&redis).await;
        let late = fence.enter("stock", exclusive(2 * value - 1)).await;
        assert!(matches!(late, Err(RedisFenceError::Refused(Refused::Stale { .. }))), "{late:?}");
        assert_eq!(fence.marks("other").await.expect("marks").base.writer, Some(token(value)));
        assert_eq!(redis.cli(&["GET", "other"]), value.to_string());
    }
}

#[tokio::test]
async fn flushed_server_loses_the_resource_and_its_marks() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    fence.write("stock", exclusive(9), &[set("stock", 9)]).await.expect("never seen");
    redis.cli(&["FLUSHALL"]);
    assert_eq!(fence.marks("stock").await.expect("marks"), Marks::default());
    fence.write("stock", exclusive(1), &[set("stock", 1)]).await.expect("as new as its marks");
}

#[tokio::test]
async fn missing_response_is_unknown_and_the_same_token_may_write_again() {
    let redis = Redis::start();
    let client = Client::open(redis.url()).expect("a URL");
    let hasty = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_millis(300)));
    let hasty = client.get_multiplexed_async_connection_with_config(&hasty).await.expect("a connection");
    let patient = fence(&redis).await;
    patient.enter("stock", exclusive(5)).await.expect("never seen");
    let fence = RedisFence::trusting_no_eviction(hasty).await.expect("a fence");

    redis.stop();
    let result = fence.write("stock", exclusive(5), &[set("stock", 5)]).await;
    assert!(matches!(result, Err(RedisFenceError::Unknown { .. })), "{result:?}");
    redis.cont();
    // The command was in flight, and is executed once the server continues.
    let until = Instant::now() + Duration::from_secs(30);
    while redis.cli(&["EXISTS", "stock"]) == "0" {
        assert!(Instant::now() < until, "what was sent never arrived");
    }
    patient.write("stock", exclusive(5), &[set("stock", 6)]).await.expect("the same token");

    redis.kill();
    let result = fence.enter("stock", exclusive(5)).await;
    assert!(matches!(result, Err(RedisFenceError::Unknown { .. })), "{result:?}");
}

#[tokio::test]
async fn server_with_any_eviction_policy_is_refused() {
    for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random"] {
        let redis = Redis::with(&["--maxmemory-policy", policy]);
        let error = connect(&redis.url()).await.expect_err("it evicts");
        assert!(matches!(&error, RedisFenceError::Evicts { policy: told } if told == policy), "{error:?}");
        assert!(error.to_string().contains("noeviction"), "{error}");
        // If the caller vouches for the server, the fence accepts it; `findings` still reports the policy.
        let fence = RedisFence::trusting_no_eviction(connected(&redis.url()).await).await.expect("trusting");
        let findings = fence.findings().await.expect("findings");
        assert!(
            findings.iter().any(|finding| finding.spoils && finding.says.contains(policy)),
            "{findings:?}"
        );
    }
}

#[tokio::test]
async fn server_that_hides_its_policy_is_refused_unless_trusted() {
    let user = |rights: &'static [&'static str]| {
        let redis = Redis::with(&[&["--user", "alice", "on", ">secret", "~*", "+@all"], rights].concat());
        let url = redis.url_as("alice", "secret");
        (redis, url)
    };
    let (_redis, url) = user(&["-info", "-config"]);
    let error = connect(&url).await.expect_err("it tells nothing");
    assert!(matches!(error, RedisFenceError::EvictionUnknown { .. }), "{error:?}");
    assert!(error.to_string().contains("trusting_no_eviction"), "{error}");
    let fence = RedisFence::trusting_no_eviction(connected(&url).await).await.expect("trusting");
    fence.enter("stock", exclusive(5)).await.expect("never seen");
    // The server does not report whether it is part of a cluster, so it is treated as one.
    let result = fence.write("stock", exclusive(5), &[set("elsewhere", 1)]).await;
    assert!(matches!(result, Err(RedisFenceError::CrossSlot { .. })), "{result:?}");
    fence.write("stock", exclusive(5), &[set("stock", 1), set("{stock}:1", 1)]).await.expect("one slot");
    assert!(fence.findings().await.expect("findings").iter().any(|finding| finding.spoils));

    // One of the two commands, `CONFIG` or `INFO`, suffices.
    for rights in [&["-config"][..], &["-info"]] {
        let (_redis, url) = user(rights);
        connect(&url).await.expect("it tells enough");
    }
    let (_redis, url) = user(&["-evalsha", "-eval"]);
    let fence = RedisFence::connect(connected(&url).await).await.expect("a fence");
    let error = fence.enter("stock", exclusive(5)).await.expect_err("no right").to_string();
    assert!(error.contains("needs EVAL, EVALSHA"), "{error}");

    // A user that lacks some of the rights must not be able to remove marks by a failing call.
    let (redis, url) = user(&["-hset"]);
    let slot = Section::permit(3, token(50)).expect("a slot");
    let able = RedisFence::connect(connected(&redis.url()).await).await.expect("a fence");
    able.enter("stock", slot).await.expect("never seen");
    let before = able.marks("stock").await.expect("marks");
    let unable = RedisFence::connect(connected(&url).await).await.expect("a fence");
    unable.enter("stock", exclusive(60)).await.expect_err("no right");
    unable.reset("stock", token(60)).await.expect_err("no right");
    assert_eq!(able.marks("stock").await.expect("marks"), before);
}

#[tokio::test]
async fn findings_report_losses_by_crash_and_fail_over() {
    // The findings are about eviction, disk and replicas, in this order.
    assert_eq!(connect(&lasting_server().url()).await.expect("a fence"), [false, false, false]);
    let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    assert_eq!(connect(&redis.url()).await.expect("a fence"), [false, true, false]);
    let _replica = redis.replica();
    assert_eq!(connect(&redis.url()).await.expect("a fence"), [false, true, true]);
}

#[tokio::test]
async fn replicas_and_demoted_primaries_are_refused() {
    let redis = Redis::start();
    let replica = redis.replica();
    let error = connect(&replica.url()).await.expect_err("a replica");
    assert!(matches!(error, RedisFenceError::Replica), "{error:?}");

    let fence = fence(&redis).await;
    fence.enter("stock", exclusive(5)).await.expect("never seen");
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    // The replica refuses even if its marks already include the token, since the primary's may be higher.
    for result in [
        fence.enter("stock", exclusive(5)).await,
        fence.enter("stock", exclusive(6)).await,
        fence.write("stock", exclusive(6), &[set("stock", 6)]).await.map(drop),
    ] {
        assert!(matches!(result, Err(RedisFenceError::Replica)), "{result:?}");
    }
    let result = fence.write("stock", exclusive(5), &[set("stock", 5)]).await;
    assert!(matches!(result, Err(RedisFenceError::Failed { done: 0, .. })), "{result:?}");
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(redis.cli(&["EXISTS", "stock"]), "0");
}

#[tokio::test]
async fn full_server_refuses_writes_with_a_clear_error() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    fence.enter("stock", exclusive(5)).await.expect("never seen");
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = fence.write("stock", exclusive(6), &[set("stock", 6)]).await.expect_err("full");
    assert!(matches!(error, RedisFenceError::Server { .. }), "{error:?}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(fence.marks("stock").await.expect("marks").base.any, Some(token(5)));
    assert_eq!(redis.cli(&["EXISTS", "stock"]), "0");
}
