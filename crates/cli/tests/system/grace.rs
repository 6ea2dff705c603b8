//! `run --grace` at its upper limit, half the ttl.

use std::time::{Duration, Instant};

use lockkeeper::Wait;
use lockkeeper::blocking::Locks;

use crate::support::{CommandExt, Ended, TestDir, wait_until};

const TTL: Duration = Duration::from_secs(6);
/// The number of commands. Their starts are spread over a sixth of the ttl, so they are less than 1 % of the
/// ttl apart. A wrapper that checked the deadline only every sixth of the ttl would fail for starts within an
/// interval of about 1 % of the ttl; at least one start falls into it.
const PHASES: u32 = 18;

/// Runs a command under the lock `name`. Another client holds the lock at first, and releases it when the
/// time `after` has passed since the wrapper was seen in the queue, which is soon after the wrapper's session
/// was opened.
fn run_begun_after(test: &TestDir, locks: &Locks, name: &str, after: Duration) -> Ended {
    let holder = locks.mutex(name).ttl(Duration::from_secs(60)).wait(Wait::No);
    let held = holder.acquire().unwrap();
    let words = ["run", "--ttl", "6s", "--grace", "3s", name, "--", "sleep", "6"];
    let wrapper = test.lockkeeper(words).started();
    wait_until("the wrapper waits", || locks.inspect(name).unwrap().waiter_count == 1);
    let opened = Instant::now();
    std::thread::sleep(after.saturating_sub(opened.elapsed()));
    held.release().unwrap();
    wrapper.ended()
}

#[test]
fn renewed_job_with_the_longest_grace_is_not_terminated() {
    let (test, _node) = TestDir::new().served();
    let locks = Locks::connect(&test.url()).unwrap();
    let ended: Vec<Ended> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..PHASES)
            .map(|phase| {
                let (test, locks) = (&test, &locks);
                let name = format!("phase/{phase}");
                let run = move || run_begun_after(test, locks, &name, TTL / 3 + TTL / 6 / PHASES * phase);
                scope.spawn(run)
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let killed: Vec<(usize, Ended)> =
        ended.into_iter().enumerate().filter(|(_, ended)| ended.code != 0).collect();
    assert!(killed.is_empty(), "{} of {PHASES}: {killed:?}", killed.len());
}
