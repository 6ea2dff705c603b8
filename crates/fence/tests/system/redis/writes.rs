//! The caller's commands and scripts in a fenced write.

use lockkeeper_fence::redis::{FenceScript, RedisCommand, RedisFenceError};
use lockkeeper_fence::{BadResource, Marks, Pair, Refused, Section};
use lockkeeper_rig::Redis;
use redis::Value;

use super::{exclusive, fence, set};
use crate::suite::token;

fn stale<T: std::fmt::Debug>(result: Result<T, RedisFenceError>, offered: u64, highest: u64) {
    let expected = Refused::Stale { offered: token(offered), highest: token(highest) };
    assert!(matches!(&result, Err(RedisFenceError::Refused(refused)) if *refused == expected), "{result:?}");
}

#[tokio::test]
async fn commands_run_in_order_and_their_replies_are_returned() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    let commands = [
        set("stock", 3),
        RedisCommand::new("HSET").key("{stock}:log").arg(&["a", "1", "b", "two words"]),
        RedisCommand::new("INCRBY").key("stock").arg(4),
        RedisCommand::new("GET").key("nothing"),
        RedisCommand::new("HGET").key("{stock}:log").arg("b"),
    ];
    let answers = fence.write("stock", exclusive(5), &commands).await.expect("never seen");
    let [Value::Okay, Value::Int(2), Value::Int(7), Value::Nil, Value::BulkString(text)] = &answers[..]
    else {
        panic!("{answers:?}")
    };
    assert_eq!(text, b"two words");
    assert_eq!(redis.cli(&["GET", "stock"]), "7");
}

#[tokio::test]
async fn a_stale_write_runs_none_of_its_commands() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    fence.write("stock", exclusive(5), &[set("stock", 5)]).await.expect("never seen");
    fence.enter("stock", exclusive(6)).await.expect("later");
    stale(fence.write("stock", exclusive(5), &[set("stock", 9), set("other", 9)]).await, 5, 6);
    stale(fence.check_once("stock", exclusive(5), &[set("stock", 9)]).await, 5, 6);
    let script = FenceScript::new("redis.call('SET', KEYS[1], 9)");
    stale(fence.write_script("stock", exclusive(5), &script, &["stock"], &[""; 0]).await, 5, 6);
    assert_eq!((redis.cli(&["GET", "stock"]), redis.cli(&["EXISTS", "other"])), ("5".into(), "0".into()));
    assert_eq!(fence.marks("stock").await.expect("marks").base.any, Some(token(6)));
}

#[tokio::test]
async fn the_largest_tokens_are_compared_and_kept_exactly() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    const MAX: u64 = (1 << 53) - 1;
    for value in [MAX - 1, MAX] {
        fence.enter("stock", exclusive(value)).await.expect("higher");
        fence.enter("stock", exclusive(value)).await.expect("equal");
        fence.enter("stock", Section::shared(token(value))).await.expect("equal, as a reader");
        assert_eq!(redis.cli(&["HGET", "{stock}:lockkeeper:fence", "any"]), value.to_string());
    }
    stale(fence.enter("stock", exclusive(MAX - 1)).await, MAX - 1, MAX);
}

#[tokio::test]
async fn marks_are_one_hash_that_never_expires() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    let permit = |slot, value| Section::permit(slot, token(value)).expect("a slot");
    fence.enter("jobs", exclusive(2)).await.expect("never seen");
    fence.write("jobs", permit(3, 9), &[set("jobs", 1)]).await.expect("higher");
    let key = "{jobs}:lockkeeper:fence";
    let fields = redis.cli(&["HMGET", key, "any", "writer", "any:3", "writer:3"]);
    assert_eq!(fields, "2\n2\n9\n9");
    assert_eq!((redis.cli(&["HLEN", key]), redis.cli(&["TTL", key])), ("4".into(), "-1".into()));
    let pair = |value| Pair { any: Some(token(value)), writer: Some(token(value)) };
    let marks = fence.marks("jobs").await.expect("marks");
    assert_eq!(marks, Marks { base: pair(2), slots: [(3, pair(9))].into() });

    // A section without a slot is checked against all slots, and raises all of them.
    stale(fence.enter("jobs", exclusive(8)).await, 8, 9);
    fence.enter("jobs", exclusive(10)).await.expect("above all");
    stale(fence.enter("jobs", permit(3, 9)).await, 9, 10);
    stale(fence.enter("jobs", permit(4, 9)).await, 9, 10);
    assert_eq!(redis.cli(&["HLEN", key]), "2", "slots that say no more than the base are dropped");

    // For a resource whose name has a hash tag, the marks have the same tag.
    fence.enter("{jobs}", exclusive(1)).await.expect("another resource");
    assert_eq!(redis.cli(&["HGET", "{jobs}:lockkeeper:tagged:fence", "any"]), "1");
}

#[tokio::test]
async fn failed_command_ends_the_write_and_earlier_ones_stay() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    redis.cli(&["SET", "word", "not a number"]);
    let commands = [set("first", 1), RedisCommand::new("INCR").key("word"), set("third", 3)];
    let error = fence.write("stock", exclusive(5), &commands).await.expect_err("INCR of a word");
    let RedisFenceError::Failed { done: 1, of: 3, command, message } = &error else { panic!("{error:?}") };
    assert!(command == "INCR" && message.contains("not an integer"), "{error}");
    assert!(
        error.to_string().contains("command 2 of 3") && error.to_string().contains("The 1 before"),
        "{error}"
    );
    assert_eq!((redis.cli(&["GET", "first"]), redis.cli(&["EXISTS", "third"])), ("1".into(), "0".into()));

    // The section has passed although its write failed: lower tokens are stale, and the same token may try
    // again.
    stale(fence.enter("stock", exclusive(4)).await, 4, 5);
    redis.cli(&["SET", "word", "7"]);
    assert_eq!(fence.write("stock", exclusive(5), &commands).await.expect("mended").len(), 3);
    // `check_once` uses up the token even if its command fails.
    let once = fence.check_once("stock", exclusive(6), &[RedisCommand::new("NO-SUCH-COMMAND")]).await;
    assert!(matches!(once, Err(RedisFenceError::Failed { done: 0, of: 1, .. })), "{once:?}");
    let again = fence.check_once("stock", exclusive(6), &[set("first", 6)]).await;
    assert!(matches!(again, Err(RedisFenceError::Refused(Refused::Repeated { .. }))), "{again:?}");
}

#[tokio::test]
async fn callers_script_gets_only_its_own_keys_and_arguments() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    let script = FenceScript::new(
        "local left = tonumber(redis.call('GET', KEYS[1]) or ARGV[1])\n\
         if left < 1 then return {#KEYS, #ARGV, 'sold out'} end\n\
         redis.call('SET', KEYS[1], left - 1)\n\
         return {#KEYS, #ARGV, ARGV[2]} -- a comment as its last words",
    );
    for (expected, left) in [("bye", "0"), ("sold out", "0")] {
        let section = exclusive(5);
        let answer =
            fence.write_script("stock", section, &script, &["stock"], &["1", "bye"]).await.expect("live");
        let words = [Value::Int(1), Value::Int(2), Value::BulkString(expected.into())];
        assert_eq!(answer, Value::Array(words.into()));
        assert_eq!(redis.cli(&["GET", "stock"]), left);
    }
    let nothing = FenceScript::new("");
    let answer = fence.write_script("stock", exclusive(6), &nothing, &[], &[""; 0]).await.expect("live");
    assert_eq!(answer, Value::Nil);
    stale(fence.enter("stock", exclusive(5)).await, 5, 6);

    let failing =
        FenceScript::new("redis.call('SET', KEYS[1], 8)\nredis.call('INCR', ARGV[1], 'too', 'many')");
    let error =
        fence.write_script("stock", exclusive(6), &failing, &["stock"], "x").await.expect_err("it fails");
    assert!(
        matches!(&error, RedisFenceError::Script { message } if message.contains("Wrong number of args")),
        "{error}"
    );
    assert_eq!(redis.cli(&["GET", "stock"]), "8", "what was done stays done");
    let raising = FenceScript::new("error('no more of this')");
    let error =
        fence.write_script("stock", exclusive(6), &raising, &[], &[""; 0]).await.expect_err("it raises");
    assert!(
        matches!(&error, RedisFenceError::Script { message } if message.contains("no more of this")),
        "{error}"
    );
    // A script that returns an error reply has failed as well.
    let refusing = FenceScript::new("return redis.error_reply('sold out')");
    let result = fence.write_script("stock", exclusive(6), &refusing, &["stock"], "").await;
    assert!(
        matches!(&result, Err(RedisFenceError::Script { message }) if message.contains("sold out")),
        "{result:?}"
    );
    let not_lua = FenceScript::new("this is no Lua");
    let error = fence.write_script("stock", exclusive(7), &not_lua, &[], &[""; 0]).await.expect_err("no Lua");
    assert!(
        matches!(&error, RedisFenceError::Server { source } if source.to_string().contains("compiling")),
        "{error}"
    );
    fence.enter("stock", exclusive(6)).await.expect("the script that is none raised nothing");
}

#[tokio::test]
async fn unsafe_commands_are_refused_before_they_are_sent() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    fence.enter("stock", exclusive(5)).await.expect("never seen");
    for bad in [
        RedisCommand::new("FlushAll"),
        RedisCommand::new("FLUSHDB").arg("ASYNC"),
        RedisCommand::new(""),
        RedisCommand::new("DEL").key("{stock}:lockkeeper:fence"),
        RedisCommand::new("RPUSH").key("list").arg(vec![1; 4000]),
    ] {
        let result = fence.write("stock", exclusive(9), &[set("stock", 9), bad]).await;
        assert!(matches!(result, Err(RedisFenceError::Command { .. })), "{result:?}");
    }
    let own = FenceScript::new("redis.call('DEL', KEYS[1])");
    let result = fence.write_script("stock", exclusive(9), &own, &["{stock}:lockkeeper:fence"], "").await;
    assert!(matches!(result, Err(RedisFenceError::Command { .. })), "{result:?}");
    let result = fence.write("stock", Section::shared(token(9)), &[set("stock", 9)]).await;
    assert!(matches!(result, Err(RedisFenceError::Refused(Refused::SharedWrite { .. }))), "{result:?}");
    for (name, bad) in [("", BadResource::Empty), (&*"x".repeat(513), BadResource::TooLong { bytes: 513 })] {
        let result = fence.enter(name, exclusive(9)).await;
        assert!(matches!(&result, Err(RedisFenceError::Resource(why)) if *why == bad), "{result:?}");
    }
    assert_eq!(redis.cli(&["EXISTS", "stock"]), "0");
    fence.enter("stock", exclusive(5)).await.expect("nothing was raised");
    // The longest allowed command succeeds.
    let longest = RedisCommand::new("RPUSH").key("list").arg(vec![1; 3998]);
    fence.write("stock", exclusive(5), &[longest]).await.expect("live");
    assert_eq!(redis.cli(&["LLEN", "list"]), "3998");
}

#[tokio::test]
async fn reset_raises_and_lowers_marks() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    fence.enter("stock", exclusive(1_000)).await.expect("never seen");
    fence.enter("stock", Section::permit(2, token(2_000)).expect("a slot")).await.expect("higher");
    fence.reset("stock", token(40)).await.expect("reset");
    let both = Pair { any: Some(token(40)), writer: Some(token(40)) };
    assert_eq!(fence.marks("stock").await.expect("marks"), Marks { base: both, slots: [].into() });
    stale(fence.enter("stock", exclusive(39)).await, 39, 40);
    fence.reset("stock", token(50)).await.expect("reset");
    stale(fence.enter("stock", exclusive(49)).await, 49, 50);
    fence.enter("stock", exclusive(50)).await.expect("from there on");
}

#[tokio::test]
async fn damaged_marks_refuse_every_call() {
    let redis = Redis::start();
    let fence = fence(&redis).await;
    for (field, value) in [
        ("any", "x"),
        ("writer", ""),
        ("any", "0"),
        ("any", "-5"),
        ("any", "7.5"),
        ("any", "9007199254740992"),
        ("any:03", "7"),
        ("most", "7"),
        ("any:x", "7"),
    ] {
        redis.cli(&["FLUSHALL"]);
        redis.cli(&["HSET", "{stock}:lockkeeper:fence", field, value]);
        for result in [
            fence.enter("stock", exclusive(9)).await,
            fence.write("stock", exclusive(9), &[set("stock", 9)]).await.map(drop),
            fence.marks("stock").await.map(drop),
        ] {
            let RedisFenceError::Damaged { field: told, value: with, .. } = result.expect_err("damaged")
            else {
                panic!("{field} {value}")
            };
            assert_eq!((told.as_str(), with.as_str()), (field, value));
        }
        assert_eq!(redis.cli(&["EXISTS", "stock"]), "0");
        fence.reset("stock", token(3)).await.expect("the way out");
        fence.enter("stock", exclusive(3)).await.expect("live");
    }

    redis.cli(&["FLUSHALL"]);
    redis.cli(&["SET", "{stock}:lockkeeper:fence", "a word"]);
    for result in [
        fence.enter("stock", exclusive(9)).await,
        fence.write("stock", exclusive(9), &[set("stock", 9)]).await.map(drop),
        fence.marks("stock").await.map(drop),
        fence.reset("stock", token(9)).await,
    ] {
        assert!(
            matches!(&result, Err(RedisFenceError::WrongType { key }) if key.ends_with("fence")),
            "{result:?}"
        );
    }
    assert_eq!(redis.cli(&["GET", "{stock}:lockkeeper:fence"]), "a word");
}
