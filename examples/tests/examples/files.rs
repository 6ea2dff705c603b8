//! The examples that write to files.

use std::fs;
use std::path::{Path, PathBuf};

use lockkeeper_rig::Redis;

use crate::service::Service;
use crate::{at_once, count, fails};

/// New lock services for a test; they live as long as this value.
struct Kept {
    service: Service,
    redis: Redis,
    dir: tempfile::TempDir,
}

impl Kept {
    fn start() -> Self {
        Self {
            service: Service::start(),
            redis: Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]),
            dir: tempfile::tempdir().expect("a directory"),
        }
    }

    /// The lock services' URLs, each with a directory for the example's files.
    fn each(&self) -> [(String, PathBuf); 3] {
        let urls = [
            ("service", self.service.url()),
            ("redis", format!("{}?fencing=counter", self.redis.url())),
            ("file", format!("file://{}", self.dir.path().join("locks").display())),
        ];
        urls.map(|(name, url)| {
            let place = self.dir.path().join(name);
            fs::create_dir(&place).expect("created");
            (url, place)
        })
    }
}

/// Raises the marks of `file` to the highest token, as a later holder would.
fn fence_off(file: &Path) {
    let fence = lockkeeper_fence::FileFence::new(file).expect("a fence");
    let token = lockkeeper_fence::Token::new(9_007_199_254_740_991).expect("the highest token");
    fence.enter(lockkeeper_fence::Section::exclusive(token)).expect("higher than all");
}

#[test]
fn cron_singleton_runs_once_per_period_on_many_hosts() {
    let program = env!("CARGO_BIN_EXE_cron_singleton");
    let kept = Kept::start();
    for (locks, place) in kept.each() {
        let outbox = place.join("outbox");
        let outbox = outbox.to_str().expect("text");
        let hosts = vec![vec![locks.as_str(), outbox]; 6];
        let told = at_once(program, &hosts);
        assert_eq!((count(&told, "ran"), count(&told, "skipped")), (1, 5), "{told:#?}");
        let late = at_once(program, &hosts[..1]);
        assert_eq!(count(&late, "skipped"), 1, "a host that is late, after the job is done: {late:?}");
        assert_eq!(fs::read_to_string(outbox).expect("sent").lines().count(), 1);
    }
}

#[test]
fn cron_singleton_with_a_stale_token_sends_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let locks = format!("file://{}", dir.path().join("locks").display());
    let outbox = dir.path().join("outbox");
    fence_off(&outbox);
    let why = fails(env!("CARGO_BIN_EXE_cron_singleton"), &[&locks, outbox.to_str().expect("text")]);
    assert!(why.contains("Stale"), "{why}");
    assert!(!outbox.exists());
}

#[test]
fn shared_file_loses_no_line_and_refuses_stale_writes() {
    let program = env!("CARGO_BIN_EXE_shared_file");
    let dir = tempfile::tempdir().expect("a directory");
    let locks = format!("file://{}", dir.path().join("locks").display());
    let file = dir.path().join("stock.txt");
    let path = file.to_str().expect("text");
    let names: Vec<String> = (0..8).map(|number| format!("line {number}")).collect();
    let lines: Vec<_> = names.iter().map(|name| vec![locks.as_str(), path, name.as_str()]).collect();
    let told = at_once(program, &lines);
    assert_eq!(count(&told, "added"), 8, "{told:#?}");
    let content = fs::read_to_string(&file).expect("written");
    let mut got: Vec<&str> = content.lines().collect();
    got.sort_unstable();
    assert_eq!(got, names);

    fence_off(&file);
    let why = fails(program, &[&locks, path, "late"]);
    assert!(why.contains("too late"), "{why}");
    assert_eq!(fs::read_to_string(&file).expect("as before"), content);
}

#[test]
fn gpu_pool_gives_each_card_to_one_job_at_a_time() {
    let kept = Kept::start();
    for (locks, cards) in kept.each() {
        let cards = cards.to_str().expect("text");
        let jobs: Vec<String> = (0..6).map(|number| format!("job-{number}")).collect();
        let lines: Vec<_> = jobs.iter().map(|job| vec![locks.as_str(), cards, "2", job.as_str()]).collect();
        let told = at_once(env!("CARGO_BIN_EXE_gpu_pool"), &lines);

        let mut used: Vec<(u32, u128, u128)> = told.iter().map(|line| parse(line)).collect();
        used.sort_unstable();
        assert!(used.iter().all(|(card, ..)| *card < 2), "{told:#?}");
        for pair in used.windows(2) {
            let [(card, _, until), (next, from, _)] = pair else { unreachable!("pairs") };
            assert!(card != next || until <= from, "card {card} was used by two: {told:#?}");
        }
        for card in 0..2 {
            let saved = fs::read_to_string(format!("{cards}/card-{card}"));
            let saved = saved.unwrap_or_else(|why| panic!("card {card} was never used: {why}; {told:#?}"));
            assert!(saved.ends_with("epoch 3\n"), "{saved}");
        }
    }
}

/// Parses `job-1 had card 0 from 17 to 29` into card, start and end.
fn parse(line: &str) -> (u32, u128, u128) {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words[at].parse::<u128>().unwrap_or_else(|why| panic!("{line}: {why}"));
    (u32::try_from(number(3)).expect("a card"), number(5), number(7))
}
