//! `advise`.

use lockkeeper_cli::exit;

use crate::support::{CommandExt, Ended, TestDir};

fn advised(answers: &str, input: &str) -> Ended {
    let words: Vec<&str> = answers.split_whitespace().collect();
    TestDir::new().bare([&["advise"], &words[..]].concat()).fed(input.as_bytes())
}

#[test]
fn a_cron_job_a_payment_and_a_leader_get_different_advice() {
    let cron = advised("--harm cost --tasks job --service host --takes 5m --runtime native", "");
    assert_eq!((cron.code, cron.err.as_str()), (0, ""));
    for words in ["an efficiency lock", "lockkeeper run --locks file:///", "--max-hold 50m"] {
        assert!(cron.out.contains(words), "{}", cron.out);
    }
    assert!(!cron.out.contains("--ttl"), "a lock of files has none: {}", cron.out);
    let payment = advised("--harm damage --effect call --api yes", "");
    assert!(payment.out.contains("no lock: an idempotency key"), "{}", payment.out);
    let leader = "--harm damage --effect owned --owner no --service etcd --takes 1h --runtime gc --json";
    let leader: serde_json::Value = serde_json::from_str(&advised(leader, "").out).unwrap();
    assert_eq!((&leader["advice"], &leader["kind"]), (&"election".into(), &"correctness".into()));
    assert_eq!(
        (&leader["lock"]["ttl_ms"], &leader["lock"]["lacks"]),
        (&30_000.into(), &serde_json::Value::Null)
    );
    assert_eq!(leader["answers"]["runtime"], "gc");
    assert_eq!(leader["lock"]["max_hold_ms"], serde_json::Value::Null, "a leader may lead for days");
}

#[test]
fn answers_are_read_where_they_are_not_given_by_key_or_by_number() {
    let ended = advised("", "3\n6\nhttp\nredis\n10m\n3\n");
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    for words in
        ["with the gate", "lockkeeper gate --upstream", "fencing=counter", "--ttl 1m30s", "docs/gate.md"]
    {
        assert!(ended.out.contains(words), "{}", ended.out);
    }
    let lacking = advised("--harm damage --effect other", "yes\nredlock\n1s\ngc\n");
    assert!(lacking.out.contains("BUT it has no tokens") && lacking.out.contains("etcd"), "{}", lacking.out);
}

#[test]
fn missing_and_unknown_answers_are_refused_with_the_known_ones() {
    advised("--harm cost", "")
        .is_one_line(exit::USAGE, &["What is the work?", "--tasks (queue, job, always)"]);
    advised("--harm some", "").is_one_line(exit::USAGE, &["--harm `some`", "nothing, cost, damage"]);
    advised("--harm cost --tasks job", "cassandra\n")
        .is_one_line(exit::USAGE, &["--service `cassandra`", "postgres, "]);
    advised("", "4\n").is_one_line(exit::USAGE, &["--harm `4`", "nothing, cost, damage"]);
    advised("--harm cost --tasks job --service host", "long\n").is_one_line(exit::USAGE, &["500ms, 5s, 10m"]);
    advised("--harm cost --tasks job --service host --runtime gc --takes 5", "")
        .is_one_line(exit::USAGE, &["--takes `5`"]);
}
