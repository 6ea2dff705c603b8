//! Lost responses, lost or late puts, lagging reads: a call that reports success has taken effect, and a call
//! that reports "not done" has not, and never will.
#![expect(clippy::print_stdout, reason = "a test tells how much it saw; shown with --nocapture")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lockkeeper_fence::{ObjectError, ObjectFence, PointerFence, Refused, Section};
use lockkeeper_rig::{Azurite, S3};
use object_store::{ObjectStore, ObjectStoreExt};

use crate::object_store::faults::{Faults, Faulty, When};
use crate::object_store::stores::{azure_client, foreign, in_memory, s3_client};
use crate::suite::token;

const RESOURCE: &str = "log";
const USERS: u64 = 4;

/// The faults of most tests here, in per cent of the calls.
const LOSSES: Faults = Faults {
    answer_lost: 15,
    put_lost: 10,
    put_late: 10,
    read_fails: 5,
    read_stale: 0,
    ignores_if_match: false,
    ignores_if_none_match: false,
    refuses_if_match: false,
    one_etag: false,
    no_etag: false,
    two_steps: false,
    unsupported: false,
    keeps: false,
};

/// A resource whose content is the tokens of all sections that wrote, one per line.
trait Log: Clone + Send + Sync + 'static {
    fn connect(store: Arc<dyn ObjectStore>) -> impl Future<Output = Self> + Send;
    /// Enters, and returns the content.
    fn enter(&self, section: Section) -> impl Future<Output = Result<String, ObjectError>> + Send;
    fn write(&self, section: Section, log: String) -> impl Future<Output = Result<(), ObjectError>> + Send;
    fn read(&self) -> impl Future<Output = String> + Send;
    /// Work of an operator that runs beside the users, such as a sweep.
    fn tend(&self) -> impl Future<Output = ()> + Send;
}

fn text(content: Option<bytes::Bytes>) -> String {
    String::from_utf8(content.unwrap_or_default().to_vec()).expect("text")
}

impl Log for ObjectFence {
    async fn connect(store: Arc<dyn ObjectStore>) -> Self {
        Self::connect(store).await.expect("fit")
    }

    async fn enter(&self, section: Section) -> Result<String, ObjectError> {
        self.enter(RESOURCE, section).await.map(text)
    }

    async fn write(&self, section: Section, log: String) -> Result<(), ObjectError> {
        self.write(RESOURCE, section, log).await
    }

    async fn read(&self) -> String {
        text(self.read(RESOURCE).await.expect("readable"))
    }

    async fn tend(&self) {}
}

impl Log for PointerFence {
    async fn connect(store: Arc<dyn ObjectStore>) -> Self {
        Self::connect(store).await.expect("fit")
    }

    async fn enter(&self, section: Section) -> Result<String, ObjectError> {
        self.enter(RESOURCE, section).await?;
        self.read(RESOURCE).await.map(text)
    }

    async fn write(&self, section: Section, log: String) -> Result<(), ObjectError> {
        self.write(RESOURCE, section, log).await
    }

    async fn read(&self) -> String {
        text(self.read(RESOURCE).await.expect("readable"))
    }

    /// Sweeps with a minimum age of zero, which may remove data that are just being uploaded.
    async fn tend(&self) {
        // A sweep may fail like any call; another one follows.
        let _ = self.sweep(RESOURCE, Duration::ZERO).await;
    }
}

#[derive(Default)]
struct Told {
    done: Vec<u64>,
    not_done: Vec<u64>,
    unsure: Vec<u64>,
}

/// One user: enters with a new token and appends it to the content, `rounds` times. Calls may fail.
async fn sections<L: Log>(log: L, tokens: Arc<AtomicU64>, rounds: u64) -> Told {
    let mut told = Told::default();
    for round in 0..rounds {
        if round % 5 == 4 {
            log.tend().await;
        }
        let value = tokens.fetch_add(1, Ordering::SeqCst);
        let section = Section::exclusive(token(value));
        let Ok(found) = log.enter(section).await else { continue };
        match log.write(section, format!("{found}{value}\n")).await {
            Ok(()) => told.done.push(value),
            Err(ObjectError::Unsure { .. }) => told.unsure.push(value),
            // All other errors mean that nothing was written.
            Err(_) => told.not_done.push(value),
        }
    }
    told
}

/// Runs the users on `inner` with `faults` from `seed`, and compares the final content with the results that
/// they got. Returns the faults that occurred, and the numbers of "done" and "unsure" results.
async fn what_is_told_is_true<L: Log>(
    inner: Arc<dyn ObjectStore>,
    faults: Faults,
    seed: u64,
    rounds: u64,
) -> (Arc<Faulty>, usize, usize) {
    let store = Faulty::new(inner, Faults::default(), seed);
    let log = L::connect(Arc::clone(&store) as Arc<dyn ObjectStore>).await;
    store.set(faults);
    let tokens = Arc::new(AtomicU64::new(1));
    let users = (0..USERS).map(|_| tokio::spawn(sections(log.clone(), Arc::clone(&tokens), rounds)));
    let mut all: Vec<Told> = join_all(users).await.into_iter().map(|user| user.expect("a user")).collect();
    // At the end one user runs alone, so that some writes succeed: on a slow store, concurrent users may all
    // be overtaken.
    all.push(sections(log.clone(), tokens, rounds).await);
    let mut told = Told::default();
    for user in all {
        told.done.extend(user.done);
        told.not_done.extend(user.not_done);
        told.unsure.extend(user.unsure);
    }
    store.set(Faults::default());
    store.settle().await;
    let there = log.read().await;
    let there: Vec<u64> = there.lines().map(|line| line.parse().expect("a token")).collect();
    assert!(
        there.is_sorted_by(|a, b| a < b),
        "seed {seed}: each once, and in the order of tokens: {there:?}"
    );
    for done in &told.done {
        assert!(there.contains(done), "seed {seed}: {done} was told to be written, and is lost: {there:?}");
    }
    for not_done in &told.not_done {
        assert!(!there.contains(not_done), "seed {seed}: {not_done} was told not to be written: {there:?}");
    }
    let known = |value| told.done.contains(value) || told.unsure.contains(value);
    assert!(there.iter().all(known), "seed {seed}: somebody wrote who was not even let in: {there:?}");
    (store, told.done.len(), told.unsure.len())
}

async fn many_seeds<L: Log>() {
    let (mut done, mut unsure, mut happened) = (0, 0, [0; 4]);
    for seed in 0..60 {
        let (store, writes, open) = what_is_told_is_true::<L>(in_memory(), LOSSES, seed, 20).await;
        (done, unsure) = (done + writes, unsure + open);
        let counts = &store.happened;
        let now = [&counts.answers_lost, &counts.puts_lost, &counts.puts_late, &counts.reads_failed];
        happened = std::array::from_fn(|fault| happened[fault] + now[fault].load(Ordering::SeqCst));
    }
    println!(
        "{done} writes told as done, {unsure} as unsure; lost answers, lost puts, late puts, failed reads: {happened:?}"
    );
    assert!(done > 100 && happened.iter().all(|count| *count > 100), "too tame: {done}, {happened:?}");
}

#[tokio::test(start_paused = true)]
async fn object_fence_reports_true_results_under_losses() {
    many_seeds::<ObjectFence>().await;
}

#[tokio::test(start_paused = true)]
async fn pointer_fence_reports_true_results_under_losses_and_sweeps() {
    many_seeds::<PointerFence>().await;
}

/// S3's ETags are equal for equal bytes.
#[tokio::test]
async fn results_are_true_on_s3() {
    let s3 = S3::start(&foreign());
    let (store, done, unsure) =
        what_is_told_is_true::<ObjectFence>(s3_client(&s3.url()), LOSSES, 1, 15).await;
    println!("{done} done, {unsure} unsure, {:?}", store.happened);
    assert!(done > 0);
    let s3 = S3::start(&foreign());
    let (store, done, unsure) =
        what_is_told_is_true::<PointerFence>(s3_client(&s3.url()), LOSSES, 2, 15).await;
    println!("{done} done, {unsure} unsure, {:?}", store.happened);
    assert!(done > 0);
}

#[tokio::test]
async fn results_are_true_on_azure() {
    let azurite = Azurite::start(&foreign());
    let (store, done, unsure) =
        what_is_told_is_true::<ObjectFence>(azure_client(&azurite.url()), LOSSES, 3, 15).await;
    println!("{done} done, {unsure} unsure, {:?}", store.happened);
    assert!(done > 0);
}

/// Checks are correct even if reads lag, and so is the content that `enter` returns.
#[tokio::test(start_paused = true)]
async fn lagging_reads_lose_no_update() {
    let (mut done, mut stale) = (0, 0);
    for seed in 0..60 {
        let faults = Faults { read_stale: 40, ..Faults::default() };
        let (store, writes, _) = what_is_told_is_true::<ObjectFence>(in_memory(), faults, seed, 20).await;
        done += writes;
        stale += store.happened.reads_stale.load(Ordering::SeqCst);
    }
    println!("{done} writes done, {stale} stale reads");
    assert!(done > 100 && stale > 1000, "too tame: {done}, {stale}");
}

/// Runs a write with token 5 whose first put has `faults`. `others` change the object once, at the first
/// moment `when` of this write. Returns the result of the write, and the final content.
async fn write_while<F>(
    faults: Faults,
    when: When,
    others: impl FnOnce(ObjectFence, Arc<dyn ObjectStore>) -> F,
) -> (Result<(), ObjectError>, String)
where
    F: Future<Output = ()> + Send + 'static,
{
    let inner = in_memory();
    let other = ObjectFence::connect(Arc::clone(&inner)).await.expect("fit");
    let store = Faulty::new(Arc::clone(&inner), Faults::default(), 1);
    let fence = ObjectFence::connect(Arc::clone(&store) as Arc<dyn ObjectStore>).await.expect("fit");
    let five = Section::exclusive(token(5));
    fence.enter(RESOURCE, five).await.expect("never seen");
    store.set(faults);
    let well = Arc::clone(&store);
    let mut others = Some(others(other.clone(), inner).boxed());
    store.between(move |now, _| {
        // The put in progress has its faults already; later puts have none.
        if now == When::BeforePut {
            well.set(Faults::default());
        }
        if now == when { others.take() } else { None }
    });
    let told = fence.write(RESOURCE, five, "five").await;
    (told, text(other.read(RESOURCE).await.expect("readable")))
}

/// Makes `count` changes by other sections, each with a higher token.
async fn changes(fence: ObjectFence, count: u64) {
    for value in 100..100 + count {
        fence.enter(RESOURCE, Section::exclusive(token(value))).await.expect("higher");
    }
}

const ANSWER_LOST: Faults = Faults { answer_lost: 100, put_lost: 0, put_late: 0, read_fails: 0, ..LOSSES };
const PUT_LOST: Faults = Faults { answer_lost: 0, put_lost: 100, put_late: 0, read_fails: 0, ..LOSSES };
const PUT_LATE: Faults = Faults { answer_lost: 0, put_lost: 0, put_late: 100, read_fails: 0, ..LOSSES };

#[tokio::test(start_paused = true)]
async fn write_with_a_lost_response_is_recognized_as_done_despite_later_changes() {
    for count in [0, 1, 32] {
        let others = |fence, _| changes(fence, count);
        let (told, content) = write_while(ANSWER_LOST, When::AfterPut, others).await;
        assert!(told.is_ok() && content == "five", "{count} changes later: {told:?}, {content:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_put_is_retried_and_late_put_is_applied_once() {
    for faults in [PUT_LOST, PUT_LATE] {
        let (told, content) = write_while(faults, When::AfterPut, |_, _| async {}).await;
        assert!(told.is_ok() && content == "five", "{faults:?}: {told:?}, {content:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_write_that_was_overtaken_is_refused_and_never_applied() {
    for faults in [PUT_LOST, PUT_LATE] {
        let (told, content) = write_while(faults, When::BeforePut, |fence, _| changes(fence, 1)).await;
        let stale = Refused::Stale { offered: token(5), highest: token(100) };
        assert!(matches!(told, Err(ObjectError::Refused(refused)) if refused == stale), "{told:?}");
        assert_eq!(content, "");
    }
}

/// There are more changes than a record lists, so the outcome is unknown, and must not be guessed.
#[tokio::test(start_paused = true)]
async fn unknown_outcome_is_reported_as_unsure() {
    for (faults, when, after) in [(ANSWER_LOST, When::AfterPut, "five"), (PUT_LOST, When::BeforePut, "")] {
        let (told, content) = write_while(faults, when, |fence, _| changes(fence, 33)).await;
        let error = told.expect_err("not known");
        assert!(matches!(error, ObjectError::Unsure { tries: 1, .. }), "{error:?}");
        assert!(error.to_string().contains("Enter again with the same token"), "{error}");
        assert_eq!(content, after);
    }
}

#[tokio::test(start_paused = true)]
async fn unresponsive_store_is_unsure_after_the_limit_of_tries() {
    let store = Faulty::new(in_memory(), Faults::default(), 1);
    let fence = ObjectFence::connect(Arc::clone(&store) as Arc<dyn ObjectStore>).await.expect("fit");
    let fence = fence.tries_at_most(3);
    store.set(PUT_LOST);
    let error = fence.enter(RESOURCE, Section::exclusive(token(1))).await.expect_err("no answer");
    assert!(matches!(error, ObjectError::Unsure { tries: 3, source: Some(_), .. }), "{error:?}");
    store.set(Faults { read_fails: 100, ..LOSSES });
    let error = fence.enter(RESOURCE, Section::exclusive(token(1))).await.expect_err("no answer");
    assert!(matches!(error, ObjectError::Store { .. }), "nothing was sent yet: {error:?}");
    store.set(Faults::default());
    fence.enter(RESOURCE, Section::exclusive(token(1))).await.expect("well again");
}

#[tokio::test(start_paused = true)]
async fn concurrent_removal_of_the_object_is_reported() {
    let remove = |_, store: Arc<dyn ObjectStore>| async move {
        store.delete(&RESOURCE.into()).await.expect("deleted");
    };
    let (told, _) = write_while(ANSWER_LOST, When::AfterPut, remove).await;
    assert!(matches!(told, Err(ObjectError::Removed { .. })), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn contended_writer_reports_its_number_of_tries() {
    let inner = in_memory();
    let rival = ObjectFence::connect(Arc::clone(&inner)).await.expect("fit");
    let store = Faulty::new(inner, Faults::default(), 1);
    let fence = ObjectFence::connect(Arc::clone(&store) as Arc<dyn ObjectStore>).await.expect("fit");
    // A reader enters during each put; it never makes the writer stale.
    store.between(move |when, _| {
        let rival = rival.clone();
        let enter = async move {
            rival.enter(RESOURCE, Section::shared(token(1))).await.expect("no writer came through");
        };
        (when == When::BeforePut).then(|| enter.boxed())
    });
    let five = Section::exclusive(token(5));
    let error = fence.clone().tries_at_most(4).write(RESOURCE, five, "five").await.expect_err("contended");
    assert!(matches!(error, ObjectError::Contended { tries: 4, .. }), "{error:?}");
    assert!(error.to_string().contains("each of 4 tries; nothing was done"), "{error}");
    store.between(|_, _| None);
    assert_eq!(fence.read(RESOURCE).await.expect("readable"), None);
    fence.write(RESOURCE, five, "five").await.expect("alone");
}
