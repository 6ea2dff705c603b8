//! The examples of recipes, on our own service.

use std::fs;

use crate::service::Service;
use crate::{at_once, count};

#[test]
fn schedulers_start_each_job_once_one_leader_after_the_other() {
    let (service, dir) = (Service::start(), tempfile::tempdir().expect("a directory"));
    let (url, journal) = (service.url(), dir.path().join("journal"));
    let journal = journal.to_str().expect("a path");
    let addresses: Vec<String> = (0..4).map(|host| format!("10.0.0.{host}:80")).collect();
    let lines: Vec<_> = addresses.iter().map(|address| vec![url.as_str(), journal, address, "5"]).collect();
    let outputs = at_once(env!("CARGO_BIN_EXE_scheduler"), &lines);
    assert!(outputs.iter().all(|output| output.contains("elected with token")), "{outputs:?}");
    let text = fs::read_to_string(journal).expect("a journal");
    let tokens: Vec<u64> = text
        .lines()
        .enumerate()
        .map(|(at, line)| {
            let (number, token) = line.split_once(", token ").expect("a job and a token");
            assert_eq!(number, format!("job {}", at + 1));
            token.parse().expect("a token")
        })
        .collect();
    assert_eq!(tokens.len(), 20, "{text}");
    assert!(tokens.is_sorted(), "one leader after the other: {tokens:?}");
}

#[test]
fn consumers_process_each_message_of_each_shard_once() {
    let (service, dir) = (Service::start(), tempfile::tempdir().expect("a directory"));
    let (url, directory) = (service.url(), dir.path().to_str().expect("a path"));
    let line = vec![url.as_str(), directory, "12", "40"];
    let outputs = at_once(env!("CARGO_BIN_EXE_sharded_consumers"), &[line.clone(), line.clone(), line]);
    let lines: Vec<String> = outputs.iter().flat_map(|output| output.lines()).map(str::to_owned).collect();
    let processed: u64 = lines
        .iter()
        .map(|line| line.strip_prefix("processed ").expect(line).parse::<u64>().expect(line))
        .sum();
    assert_eq!(processed, 12 * 40, "{outputs:?}");
    assert!(count(&lines, "processed ") >= 12, "{outputs:?}");
    for shard in 0..12 {
        let position = fs::read_to_string(dir.path().join(format!("shard-{shard}"))).expect("a position");
        assert_eq!(position, "40");
    }
}

#[test]
fn invoice_is_sent_once_by_workers_at_the_same_time_and_one_after_the_other() {
    let (service, dir) = (Service::start(), tempfile::tempdir().expect("a directory"));
    let path = |name: &str| dir.path().join(name).to_str().expect("a path").to_owned();
    let (url, records, outbox) = (service.url(), path("records"), path("outbox"));
    let line = vec![url.as_str(), &records, &outbox, "4711"];
    for _ in 0..2 {
        at_once(env!("CARGO_BIN_EXE_invoices"), &[line.clone(), line.clone(), line.clone(), line.clone()]);
    }
    let message = "<invoice-4711@shop.example>";
    assert_eq!(fs::read_to_string(&outbox).expect("an outbox"), format!("{message}\n"));
    let outputs = at_once(env!("CARGO_BIN_EXE_invoices"), &[line]);
    assert_eq!(outputs, [format!("was sent before: {message}")]);
}
