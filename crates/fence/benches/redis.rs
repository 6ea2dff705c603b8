//! The overhead of the Redis fence: a fenced SET, a fenced script with the same SET, and an `enter`, compared
//! with a plain SET on the same server.
//!
//! Prints, for a server that syncs every write and for one without persistence, the median of each and its
//! ratio to the plain SET. The variants alternate within a run, so that slow phases of the machine affect all
//! of them.
#![expect(clippy::print_stdout, reason = "it is what a benchmark does")]

use std::time::{Duration, Instant};

use lockkeeper_fence::redis::{FenceScript, RedisCommand, RedisFence};
use lockkeeper_fence::{Section, Token};
use lockkeeper_rig::Redis;

const TURNS: usize = 4000;
const WARM_UP: usize = 500;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (what, settings) in [
        ("appendfsync always", &["--appendonly", "yes", "--appendfsync", "always"][..]),
        ("stored nowhere", &[]),
    ] {
        let redis = Redis::with(settings);
        runtime.block_on(measure(what, &redis));
    }
}

async fn measure(what: &str, redis: &Redis) {
    let client = redis::Client::open(redis.url()).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
    let fence = RedisFence::connect(connection.clone()).await.expect("a fence");
    let section = Section::exclusive(Token::new(1 << 50).expect("a token"));
    fence.enter("stock", section).await.expect("never seen");
    let script = FenceScript::new("return redis.call('SET', KEYS[1], ARGV[1])");
    let value = "x".repeat(100);
    let (mut plain, mut fenced, mut own, mut enter) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS + WARM_UP {
        let began = Instant::now();
        let mut command = redis::cmd("SET");
        command.arg("stock").arg(&value);
        let () = command.query_async(&mut connection).await.expect("written");
        let after_plain = Instant::now();
        let command = RedisCommand::new("SET").key("stock").arg(&value);
        fence.write("stock", section, &[command]).await.expect("live");
        let after_fenced = Instant::now();
        fence.write_script("stock", section, &script, &["stock"], &value).await.expect("live");
        let after_own = Instant::now();
        fence.enter("stock", section).await.expect("live");
        let after_enter = Instant::now();
        if turn >= WARM_UP {
            plain.push(after_plain - began);
            fenced.push(after_fenced - after_plain);
            own.push(after_own - after_fenced);
            enter.push(after_enter - after_own);
        }
    }
    let base = median(&mut plain);
    println!("{what}: p50 of a plain SET {base:.1?}");
    for (name, times) in [("fenced SET", &mut fenced), ("fenced script", &mut own), ("enter", &mut enter)] {
        let p50 = median(times);
        println!("  {name}: p50 {p50:.1?}, {:.2} x", p50.as_secs_f64() / base.as_secs_f64());
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
