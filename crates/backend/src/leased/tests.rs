//! Tests of a session against a store that records the calls it receives.

mod overtaken;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_core::{End, Seq};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use super::*;
use crate::box_future::BoxFuture;
use crate::call::{AcquireRequest, Call, CallError};
use crate::call::{Answer, Granted, Push};
use crate::conn::answer_to;
use crate::error::Busy;
use crate::spec::Spec;
use crate::time::BootInstant;

const TTL: Duration = Duration::from_secs(30);

/// Returns scripted answers and records the calls it receives.
#[derive(Default)]
struct Script {
    asked: Mutex<Vec<String>>,
    tries: Mutex<VecDeque<BoxFuture<'static, Result<Tried, CallError>>>>,
    renewals: Mutex<VecDeque<Renewed>>,
    /// The latest attempt's.
    ttl_from: Mutex<Option<BootInstant>>,
    /// Number of renewals left that get no answer.
    unanswered_renewals: AtomicUsize,
}

impl Script {
    fn note(&self, what: &str, entry: &Entry) {
        let (_, seq) = entry.id.0.rsplit_once('-').unwrap();
        self.asked.lock().unwrap().push(format!("{what} {seq}"));
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn will(&self, tried: Result<Tried, CallError>) {
        self.tries.lock().unwrap().push_back(Box::pin(async { tried }));
    }

    /// The next attempt without a scripted answer gets the one that is sent through the returned channel.
    fn will_later(&self) -> oneshot::Sender<Tried> {
        let (sender, receiver) = oneshot::channel();
        let tried = Box::pin(async { receiver.await.map_err(|_| CallError::IN_DOUBT) });
        self.tries.lock().unwrap().push_back(tried);
        sender
    }

    fn will_renew(&self, renewed: Renewed) {
        self.renewals.lock().unwrap().push_back(renewed);
    }
}

impl Store for Script {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'static, Result<Tried, CallError>> {
        self.note("attempt", &attempt.entry);
        *self.ttl_from.lock().unwrap() = Some(attempt.ttl_from);
        let tried = self.tries.lock().unwrap().pop_front();
        tried.unwrap_or_else(|| Box::pin(std::future::pending()))
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'static, Result<Vec<Renewed>, CallError>> {
        entries.iter().for_each(|entry| self.note("renew", entry));
        let lost = |left: usize| left.checked_sub(1);
        if self.unanswered_renewals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lost).is_ok() {
            return Box::pin(async { Err(CallError::IN_DOUBT) });
        }
        let mut scripted = self.renewals.lock().unwrap();
        let renewed = entries.iter().map(|_| scripted.pop_front().unwrap_or(Renewed::Kept)).collect();
        Box::pin(async { Ok(renewed) })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'static, Result<End, CallError>> {
        self.note(if doubt { "finish in doubt" } else { "finish" }, &entry);
        Box::pin(async { Ok(End::Released) })
    }
}

struct Session {
    store: Arc<Script>,
    wakes: Wakes,
    conn: Arc<LeasedConn>,
    pushes: UnboundedReceiver<Push>,
}

impl Session {
    async fn open() -> Self {
        let (pushes_in, pushes) = unbounded_channel();
        let (store, wakes) = (Arc::new(Script::default()), Wakes::default());
        let spec = Spec { ttl: Some(TTL), lock_delay: Duration::ZERO, linger: Duration::ZERO, renew: true };
        let conn = LeasedConn::new(store.clone(), wakes.clone(), spec, "me", pushes_in);
        let session = Self { store, wakes, conn, pushes };
        session.call(Call::Open { fresh: true }).await.unwrap();
        session
    }

    async fn call(&self, call: Call) -> Result<Answer, CallError> {
        self.submit(call).await
    }

    fn submit(&self, call: Call) -> BoxFuture<'static, Result<Answer, CallError>> {
        answer_to(&*self.conn, call)
    }

    fn acquire(&self, seq: u64) -> BoxFuture<'static, Result<Answer, CallError>> {
        let request = Arc::new(AcquireRequest::exclusive(vec!["a".parse().unwrap()]));
        self.submit(Call::Acquire { seq: Seq(seq), done_through: Seq(0), request, wait_left: None })
    }

    async fn held(&self, seq: u64) {
        self.store.will(Ok(Tried::Granted(Granted::default())));
        assert!(matches!(self.acquire(seq).await, Ok(Answer::Granted(_))));
    }

    async fn finish(&self, target: u64) -> Answer {
        let call = Call::Finish { seq: Seq(99), target: Seq(target), done_through: Seq(0) };
        self.call(call).await.unwrap()
    }

    /// The entry's id in the store.
    fn id(&self, seq: u64) -> EntryId {
        EntryId(format!("{}-{seq}", self.conn.session_id()))
    }
}

/// Polls once, so that the call is sent and stays pending.
async fn start<T>(future: &mut BoxFuture<'static, T>) {
    tokio::select! {
        biased;
        _ = future => panic!("it ended at once"),
        () = std::future::ready(()) => {}
    }
}

fn waits(again: Duration) -> Result<Tried, CallError> {
    Ok(Tried::Waits { ahead: 3, again })
}

#[tokio::test]
async fn a_keep_alive_renews_what_may_hold_or_wait_and_nothing_that_ends() {
    let session = Session::open().await;
    session.held(1).await;
    session.store.will(waits(TTL));
    let mut waiting = session.acquire(2);
    start(&mut waiting).await;
    // Without an answer yet: it may hold already, and the session's deadline covers it too (P5).
    let mut unanswered = session.acquire(3);
    start(&mut unanswered).await;
    session.held(4).await;
    assert!(matches!(session.finish(4).await, Answer::Finished(End::Released)));
    session.held(5).await;
    let call = Call::Finish { seq: Seq(99), target: Seq(5), done_through: Seq(0) };
    let _unsent = session.submit(call);
    session.store.asked();
    assert!(matches!(session.call(Call::KeepAlive).await, Ok(Answer::KeptAlive)));
    assert_eq!(session.store.asked(), ["renew 1", "renew 2", "renew 3"]);
}

/// An entry may keep an earlier expiry, but not one before the session's deadline: that is a ttl after the
/// latest open or keep-alive, which may still be on its way.
#[tokio::test]
async fn an_attempt_is_told_from_when_on_its_ttl_counts() {
    let before_open = BootInstant::now();
    let session = Session::open().await;
    let opened = BootInstant::now();
    let told = || session.store.ttl_from.lock().unwrap().unwrap();
    session.held(1).await;
    assert!(before_open <= told() && told() <= opened);
    session.store.unanswered_renewals.store(1, Ordering::SeqCst);
    let before = BootInstant::now();
    assert!(session.call(Call::KeepAlive).await.is_err());
    session.held(2).await;
    assert!(told() >= before, "also for a keep-alive without an answer yet");
    session.finish(1).await;
    session.finish(2).await;
    let before = BootInstant::now();
    session.call(Call::KeepAlive).await.unwrap();
    session.held(3).await;
    assert!(told() >= before, "also for a keep-alive that renews nothing");
}

#[tokio::test]
async fn a_keep_alive_without_entries_makes_no_call() {
    let session = Session::open().await;
    assert!(matches!(session.call(Call::KeepAlive).await, Ok(Answer::KeptAlive)));
    assert!(session.store.asked().is_empty());
}

#[tokio::test]
async fn a_hold_that_a_keep_alive_does_not_find_is_reported_lost_and_not_renewed_again() {
    let mut session = Session::open().await;
    session.held(1).await;
    session.held(2).await;
    session.store.renewals.lock().unwrap().extend([Renewed::Gone, Renewed::Kept]);
    // The deadline must not be extended before the session processes the loss.
    assert!(matches!(session.call(Call::KeepAlive).await, Err(CallError { sent: true, .. })));
    assert!(matches!(session.pushes.recv().await, Some(Push::Ended { seq: Seq(1), end: End::Gone })));
    session.store.asked();
    session.call(Call::KeepAlive).await.unwrap();
    assert_eq!(session.store.asked(), ["renew 2"]);
    assert!(matches!(session.finish(1).await, Answer::Finished(End::Gone)));
}

#[tokio::test]
async fn a_repeated_acquire_checks_its_hold_and_never_takes_the_lock_again() {
    let session = Session::open().await;
    session.held(1).await;
    session.store.asked();
    assert!(matches!(session.acquire(1).await, Ok(Answer::Granted(_))));
    assert_eq!(session.store.asked(), ["renew 1"]);
    session.store.renewals.lock().unwrap().push_back(Renewed::Gone);
    assert!(matches!(session.acquire(1).await, Ok(Answer::Finished(End::Gone))));
    assert_eq!(session.store.asked(), ["renew 1"]);
}

#[tokio::test]
async fn a_broken_hold_is_reported_once_and_not_renewed() {
    let mut session = Session::open().await;
    session.held(1).await;
    session.wakes.deliver(&session.id(1), Wake::Revoked);
    session.wakes.deliver(&session.id(1), Wake::Revoked);
    assert!(matches!(session.pushes.recv().await, Some(Push::Revoked { seq: Seq(1), .. })));
    assert!(session.pushes.try_recv().is_err());
    session.store.asked();
    session.call(Call::KeepAlive).await.unwrap();
    assert!(matches!(session.acquire(1).await, Ok(Answer::Revoked)));
    assert!(session.store.asked().is_empty());
    assert!(matches!(session.finish(1).await, Answer::Finished(End::Broken)));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_tries_again_when_it_is_woken_and_when_its_pause_ends() {
    let mut session = Session::open().await;
    for _ in 0..3 {
        session.store.will(waits(Duration::from_secs(10)));
    }
    session.store.will(Ok(Tried::Granted(Granted::default())));
    let mut waiting = session.acquire(1);
    start(&mut waiting).await;
    assert!(matches!(session.pushes.recv().await, Some(Push::Queued { seq: Seq(1), position: 3 })));
    let started = tokio::time::Instant::now();
    session.wakes.deliver(&session.id(1), Wake::Try(Duration::ZERO));
    session.wakes.deliver(&session.id(1), Wake::Try(Duration::from_secs(2)));
    start(&mut waiting).await;
    session.wakes.deliver(&session.id(1), Wake::Try(Duration::from_secs(3)));
    assert!(matches!(waiting.await, Ok(Answer::Granted(_))));
    assert_eq!(started.elapsed(), Duration::from_secs(13), "at once, after 3 s, after 10 s");
    assert_eq!(session.store.asked(), ["attempt 1"; 4]);
}

#[tokio::test]
async fn an_end_is_in_doubt_if_any_attempt_went_unanswered() {
    let session = Session::open().await;
    session.held(1).await;
    session.store.will(Err(CallError::IN_DOUBT));
    assert!(matches!(session.acquire(2).await, Err(CallError { sent: true, .. })));
    session.held(2).await;
    session.store.will(Err(CallError::NOT_SENT));
    assert!(matches!(session.acquire(3).await, Err(CallError { sent: false, .. })));
    session.held(3).await;
    let mut unanswered = session.acquire(4);
    start(&mut unanswered).await;
    session.store.asked();
    for seq in 1..5 {
        session.finish(seq).await;
    }
    assert_eq!(session.store.asked(), ["finish 1", "finish in doubt 2", "finish 3", "finish in doubt 4"]);
}

#[tokio::test]
async fn a_refusal_after_an_unanswered_try_or_in_the_queue_leaves_nothing_behind() {
    let mut session = Session::open().await;
    session.store.will(Err(CallError::IN_DOUBT));
    assert!(session.acquire(1).await.is_err());
    session.store.will(Ok(Tried::Busy(Busy::default())));
    assert!(matches!(session.acquire(1).await, Ok(Answer::Busy(_))));
    assert_eq!(session.store.asked(), ["attempt 1", "attempt 1", "finish in doubt 1"]);
    session.store.will(waits(Duration::ZERO));
    session.store.will(Ok(Tried::Busy(Busy::default())));
    assert!(matches!(session.acquire(2).await, Ok(Answer::Busy(_))));
    assert!(matches!(session.pushes.recv().await, Some(Push::Queued { .. })));
    assert_eq!(session.store.asked(), ["attempt 2", "attempt 2", "finish 2"]);
}

/// The caller's runtime has ended and dropped the call. Its attempt may still arrive after a later one was
/// granted.
#[tokio::test]
async fn an_attempt_whose_call_is_dropped_leaves_its_end_in_doubt() {
    let session = Session::open().await;
    let mut dropped = session.acquire(1);
    start(&mut dropped).await;
    drop(dropped);
    session.held(1).await;
    session.store.asked();
    session.finish(1).await;
    assert_eq!(session.store.asked(), ["finish in doubt 1"]);
}

#[tokio::test]
async fn a_waiting_acquire_stops_when_its_request_ends() {
    let mut session = Session::open().await;
    session.store.will(waits(TTL));
    let waiting = tokio::spawn(session.acquire(1));
    assert!(matches!(session.pushes.recv().await, Some(Push::Queued { seq: Seq(1), .. })));
    session.finish(1).await;
    assert!(matches!(waiting.await.unwrap(), Ok(Answer::Finished(End::Gone))));
    assert_eq!(session.store.asked(), ["attempt 1", "finish 1"]);
}

#[tokio::test]
async fn waiting_acquires_stop_when_their_session_is_dropped() {
    let mut session = Session::open().await;
    session.store.will(waits(TTL));
    let waiting = tokio::spawn(session.acquire(1));
    assert!(matches!(session.pushes.recv().await, Some(Push::Queued { seq: Seq(1), .. })));
    drop(session.conn);
    assert!(matches!(waiting.await.unwrap(), Ok(Answer::Finished(End::Gone))));
    assert_eq!(session.store.asked(), ["attempt 1"]);
}

/// The finish may reach the service before the attempt.
#[tokio::test]
async fn a_grant_that_arrives_after_its_end_is_ended_again() {
    let session = Session::open().await;
    let answer = session.store.will_later();
    let mut acquire = session.acquire(1);
    start(&mut acquire).await;
    session.finish(1).await;
    answer.send(Tried::Granted(Granted::default())).unwrap();
    assert!(matches!(acquire.await, Ok(Answer::Finished(End::Gone))));
    assert_eq!(session.store.asked(), ["attempt 1", "finish in doubt 1", "finish 1"]);
}

#[tokio::test]
async fn ending_a_request_that_was_never_sent_makes_no_call() {
    let session = Session::open().await;
    session.store.will(Err(CallError::NOT_SENT));
    assert!(session.acquire(1).await.is_err());
    session.store.asked();
    assert!(matches!(session.finish(1).await, Answer::Finished(End::Gone)));
    assert!(session.store.asked().is_empty());
}

#[tokio::test]
async fn a_refused_request_leaves_nothing_to_renew() {
    let session = Session::open().await;
    session.store.will(Ok(Tried::Busy(Busy::default())));
    assert!(matches!(session.acquire(1).await, Ok(Answer::Busy(_))));
    session.store.asked();
    session.call(Call::KeepAlive).await.unwrap();
    assert!(session.store.asked().is_empty());
}

#[tokio::test]
async fn closing_ends_all_remaining_entries() {
    let session = Session::open().await;
    session.held(1).await;
    session.held(2).await;
    session.store.asked();
    assert!(matches!(session.call(Call::Close).await, Ok(Answer::Closed)));
    assert_eq!(session.store.asked(), ["finish 1", "finish 2"]);
}
