//! The driver keeps the pushes of consecutive sessions apart, and loses no input of concurrent threads.

use std::time::{Duration, Instant};

use lockkeeper_backend::{Capabilities, LossCause};
use lockkeeper_core::LockName;

use super::*;
use crate::locks::Locks;

/// `memory:` with the push senders of all sessions recorded, so that a test can send late pushes.
struct Spy {
    memory: Arc<dyn Backend>,
    pushes: Arc<Mutex<Vec<UnboundedSender<Push>>>>,
}

impl Backend for Spy {
    fn capabilities(&self) -> &Capabilities {
        self.memory.capabilities()
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        self.pushes.lock().unwrap().push(pushes.clone());
        self.memory.session(spec, label, pushes)
    }
}

/// An exclusive hold of `x`.
pub(super) fn request_of_a_test() -> Arc<AcquireRequest> {
    Arc::new(AcquireRequest::exclusive(vec![LockName::parse("x").unwrap()]))
}

#[tokio::test]
async fn a_late_push_for_an_ended_session_does_not_end_the_next_one() {
    let pushes = Arc::new(Mutex::new(Vec::new()));
    let memory = crate::backends::connect("memory:").await.unwrap().backend;
    let locks = Locks::over(Arc::new(Spy { memory, pushes: pushes.clone() }), "alice");
    let first = locks.mutex("a").acquire().await.unwrap();
    let old = pushes.lock().unwrap()[0].clone();
    old.send(Push::Lost(LossCause::Disconnected)).unwrap();
    first.lost().cancelled().await;
    let second = locks.mutex("b").acquire().await.unwrap();
    assert_eq!(pushes.lock().unwrap().len(), 2, "one way a session");
    let deadline = Instant::now() + Duration::from_secs(10);
    while old.send(Push::Lost(LossCause::SessionEnded)).is_ok() {
        assert!(Instant::now() < deadline, "the old session is still listened to");
        tokio::task::yield_now().await;
    }
    assert_eq!(second.loss(), None);
    second.verify().await.unwrap();
}

/// A thread whose input meets a locked state does not block, and its input is processed by the lock's holder.
#[tokio::test]
async fn an_input_during_another_threads_turn_is_processed_by_that_thread() {
    let backend = crate::backends::connect("memory:").await.unwrap().backend;
    let spec = Spec {
        ttl: Some(Duration::from_secs(30)),
        lock_delay: Duration::ZERO,
        linger: Duration::ZERO,
        renew: true,
    };
    let session = Session::start(backend, spec, "alice", LeaseThread::start("test").unwrap());
    let inner = &session.0;
    let elsewhere = |inputs: Vec<Input>| {
        let target = inner.clone();
        std::thread::spawn(move || inputs.into_iter().for_each(|input| target.input(input))).join().unwrap();
    };
    let request = Arc::new(AcquireRequest {
        names: vec!["a".parse().unwrap()],
        mode: lockkeeper_core::Mode::Exclusive,
        subtree: false,
        wait: true,
        keep_closed: Duration::ZERO,
        value: Box::default(),
        meta: Box::default(),
        waiters_max: None,
        spare_tokens: 0,
        holding: Box::default(),
        traceparent: None,
    });
    let limits = AcquireLimits {
        wait_until: None,
        patience: None,
        min_validity: Duration::ZERO,
        max_hold: None,
        grace: Duration::ZERO,
    };
    let runtime = CallRuntime::LeaseThread(inner.lease_thread.clone());
    let hold = Arc::new(HoldStatus::new(request_of_a_test(), LeaseTrouble::default()));
    let caller = Caller { request, hold: hold.clone(), runtime, caching: None, met_others: false };
    inner.with_state(|state| {
        elsewhere(vec![Input::Acquire(Key(1), caller, limits), Input::Abandon(Key(1))]);
        assert!(state.machine.is_idle(), "they are not worked off by two at once");
    });
    // The request was abandoned after it was made: its caller is forgotten.
    let forgotten = async { while !matches!(hold.next_report().await, RequestProgress::NotAcquired(_)) {} };
    tokio::time::timeout(Duration::from_secs(10), forgotten).await.expect("the request goes on");
    inner.with_state(|_| elsewhere(vec![Input::Event(Event::Shutdown)]));
    assert!(session.is_closed());
}

/// No input of concurrent threads is lost: its caller would wait forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_on_many_threads_are_all_answered() {
    let locks = Locks::connect("memory:").await.unwrap();
    let callers = (0..64).map(|caller| {
        let locks = locks.clone();
        tokio::spawn(async move {
            for round in 0..300 {
                let held = locks.mutex(format!("{}", caller % 48)).acquire().await.unwrap();
                match round % 3 {
                    0 => drop(held),
                    1 => held.release().await.unwrap(),
                    _ => held.verify().await.unwrap(),
                }
            }
        })
    });
    let all = futures_util::future::join_all(callers.collect::<Vec<_>>());
    for done in tokio::time::timeout(Duration::from_secs(60), all).await.expect("somebody still waits") {
        done.unwrap();
    }
}

/// A call that ends with its runtime counts as sent and not answered: the session goes on and cleans up.
#[test]
fn a_call_that_ends_with_its_runtime_is_an_unanswered_one() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let other = runtime();
    let locks = other.block_on(Locks::connect("memory:")).unwrap();
    let holder = other.block_on(locks.mutex("a").acquire()).unwrap();
    let ended = runtime();
    let _waiting = ended.spawn({
        let lock = locks.mutex("a");
        async move { lock.acquire().await.map(drop) }
    });
    ended.block_on(async {
        let deadline = Instant::now() + Duration::from_secs(10);
        while locks.inspect("a").await.unwrap().waiter_count == 0 {
            assert!(Instant::now() < deadline, "it does not wait");
            tokio::task::yield_now().await;
        }
    });
    drop(ended);
    other.block_on(async {
        holder.release().await.unwrap();
        let lock = locks.mutex("a");
        let next = tokio::time::timeout(Duration::from_secs(10), lock.acquire());
        next.await.expect("the abandoned wait is in the way").unwrap().release().await.unwrap();
    });
}
