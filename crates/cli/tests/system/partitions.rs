//! `partitions`.

use std::collections::BTreeMap;

use lockkeeper_cli::exit;
use nix::sys::signal::Signal;

use crate::support::{CommandExt, Running, TestDir, wait_until};

/// Writes a line to the journal at its start, and another at SIGTERM: what, its argument, the partition, the
/// token.
const JOB: &str = r#"
note() { echo "$1 $2 $LOCKKEEPER_PARTITION $LOCKKEEPER_TOKEN" >> journal; }
trap 'note ends $0; exit 0' TERM INT
note begins $0
while :; do sleep 0.02; done"#;

fn member(test: &TestDir) -> Running {
    test.lockkeeper(["partitions", "--ttl", "3s", "shards", "8", "--", "sh", "-c", JOB, "{}"]).started()
}

/// The token of each partition whose command runs, after a check of the journal's order.
fn running(test: &TestDir) -> BTreeMap<u32, u64> {
    let text = std::fs::read_to_string(test.path("journal")).unwrap_or_default();
    let (mut running, mut tokens) = (BTreeMap::new(), BTreeMap::<u32, u64>::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, argument, partition, token] = words[..] else { panic!("{line}") };
        assert_eq!(argument, partition, "{{}} and the environment");
        let (partition, token) = (partition.parse().unwrap(), token.parse().unwrap());
        if what == "begins" {
            assert_eq!(running.insert(partition, token), None, "two owners of {partition}: {text}");
            let before = tokens.insert(partition, token);
            assert!(before.is_none_or(|before| before < token), "{text}");
        } else {
            assert_eq!(running.remove(&partition), Some(token), "{text}");
        }
    }
    running
}

fn owners(test: &TestDir) -> BTreeMap<String, usize> {
    let printed: serde_json::Value = serde_json::from_str(&test.ran("ls shards --json").out).unwrap();
    let locks = printed.as_array().or(printed["locks"].as_array()).expect("a list");
    let mut owners = BTreeMap::new();
    for lock in locks.iter().filter(|lock| !lock["name"].as_str().unwrap().contains("members")) {
        let owner = lock["holds"][0]["label"].as_str().unwrap().to_owned();
        *owners.entry(owner).or_default() += 1;
    }
    owners
}

#[test]
fn members_divide_the_partitions_and_take_over_those_of_one_that_leaves_or_dies() {
    let (test, _node) = TestDir::new().served();
    let first = member(&test);
    wait_until("one member runs all", || running(&test).len() == 8);
    // With one in 256 a member gets nothing: then another one joins.
    let mut others = vec![member(&test)];
    let waited = std::time::Instant::now();
    wait_until("another one has its share", || {
        if waited.elapsed() > std::time::Duration::from_secs(3) * u32::try_from(others.len()).unwrap() {
            others.push(member(&test));
        }
        owners(&test).len() > 1 && running(&test).len() == 8
    });
    for other in others {
        other.signal(Signal::SIGTERM);
        let ended = other.ended();
        assert_eq!(ended.code, 143, "{ended:?}");
    }
    wait_until("the first one runs all again", || owners(&test).len() == 1 && running(&test).len() == 8);

    // A member that is killed: its guardians end its commands, and the next member owns them all.
    let second = member(&test);
    wait_until("it has joined", || test.ran("ls shards/members").out.lines().count() == 3);
    let dies = first;
    dies.signal(Signal::SIGKILL);
    wait_until("the second one runs all", || owners(&test).len() == 1 && running(&test).len() == 8);
    second.signal(Signal::SIGINT);
    let ended = second.ended();
    assert_eq!(ended.code, 130, "{ended:?}");
    assert!(running(&test).is_empty());
}

#[test]
fn command_that_ends_is_started_again_and_one_that_does_not_exist_is_an_error() {
    let (test, _node) = TestDir::new().served();
    let again =
        test.lockkeeper(["partitions", "one", "1", "--", "sh", "-c", "echo x >> runs; exit 3"]).started();
    let runs = || std::fs::read_to_string(test.path("runs")).unwrap_or_default().lines().count();
    wait_until("it ran twice", || runs() >= 2);
    test.ran("partitions one 2 -- true").is_one_line(exit::USAGE, &["divides 1 partitions, not 2"]);
    again.signal(Signal::SIGTERM);
    let ended = again.ended();
    assert_eq!(ended.code, 143, "{ended:?}");
    assert!(
        ended.err.contains("`one/0`: the command has ended with exit code 3; starting it again"),
        "{ended:?}"
    );
    let ended = test.ran("partitions one 1 -- ./no-such-command");
    assert_eq!(ended.code, i32::from(exit::NOT_FOUND), "{ended:?}");
    test.ran("partitions one 0 -- true").is_one_line(exit::USAGE, &["65536"]);
    test.ran("partitions one 1 --").is_one_line(exit::USAGE, &["no command"]);
}
