//! One request, as shared by its keeper and its callers, and the choice of the task that polls the keeper.
//!
//! A keeper (`keeper`) is one future from the first try to the end of the hold. The callers that wait for its results
//! poll it on their own tasks: most requests end within a few round trips, and none of those crosses to another thread.
//! A long-lived keeper moves to the backend's thread, which needs no caller: a stalled or terminated runtime loses no
//! lock.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use lockkeeper_core::{End, LockName, Seq};
use tokio::sync::mpsc::UnboundedSender;

use crate::backend::{BoxFuture, CallError};
use crate::io::LeaseThread;
use crate::machine::{Answer, Push};

pub(super) struct Request {
    pub(super) seq: Seq,
    pub(super) wants: Wants,
    pushes: UnboundedSender<Push>,
    worker: LeaseThread,
    state: Mutex<State>,
    /// The keeper, while callers poll it.
    keeper: Mutex<Option<BoxFuture<()>>>,
}

/// Parameters of the acquire.
pub(super) struct Wants {
    pub(super) name: LockName,
    pub(super) shared: bool,
    /// Whether to wait if the lock is not free.
    pub(super) wait: bool,
    pub(super) meta: String,
    pub(super) label: Arc<str>,
}

struct State {
    answer: Option<Result<Answer, CallError>>,
    ending: Ending,
    /// Whether it was released or abandoned.
    over: bool,
    /// Number of confirmation requests, and the last of them that the server has confirmed.
    asked: u64,
    confirmed: u64,
    carrier: Carrier,
    /// Wakers of callers that wait for results; and of the keeper, once it is on the backend's thread.
    callers: Vec<Waker>,
    keeper: Option<Waker>,
}

/// The task that polls a keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    /// The callers that wait for its results.
    Callers,
    /// Callers, until the current poll returns; then it moves to the thread.
    CallersUntilNow,
    Thread,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    NotYet,
    /// The end is unknown, as no answer came (P12); the keeper cleans up.
    Unsure,
    Sure(End),
}

/// A message from callers to the keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// The request was released or abandoned.
    Over,
    /// Sequence number of the latest confirmation request.
    Asked(u64),
}

impl Request {
    pub(super) fn new(seq: Seq, wants: Wants, pushes: UnboundedSender<Push>, worker: LeaseThread) -> Self {
        let state = State {
            answer: None,
            ending: Ending::NotYet,
            over: false,
            asked: 0,
            confirmed: 0,
            carrier: Carrier::Callers,
            callers: Vec::new(),
            keeper: None,
        };
        Self { seq, wants, pushes, worker, state: Mutex::new(state), keeper: Mutex::new(None) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keeper(&self) -> MutexGuard<'_, Option<BoxFuture<()>>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The callers' side.
impl Request {
    /// Sets the keeper, which callers poll while they wait.
    pub(super) fn begin(&self, keeper: BoxFuture<()>) {
        *self.keeper() = Some(keeper);
    }

    /// Moves the keeper to the backend's thread, if callers poll it.
    pub(super) fn hand_over(&self) {
        let keeper = self.keeper().take();
        if let Some(keeper) = keeper {
            self.state().carrier = Carrier::Thread;
            self.worker.run(keeper);
        }
    }

    /// Whether its last try failed; the caller's retry then starts a new request.
    pub(super) fn failed(&self) -> bool {
        matches!(self.state().answer, Some(Err(_)))
    }

    pub(super) fn was_granted(&self) -> bool {
        matches!(self.state().answer, Some(Ok(Answer::Granted(_))))
    }

    /// Releases or abandons the request.
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        state.over = true;
        state.tell_keeper();
    }

    pub(super) async fn answered(&self) -> Result<Answer, CallError> {
        self.until(|state| state.answer.clone()).await
    }

    pub(super) async fn ended(&self) -> Result<End, CallError> {
        let ended = |state: &State| match state.ending {
            Ending::NotYet => None,
            Ending::Unsure => Some(Err(CallError { sent: true })),
            Ending::Sure(end) => Some(Ok(end)),
        };
        self.until(ended).await
    }

    /// Waits until the server confirms that the lock is still held (P7-a).
    pub(super) async fn confirmed(&self) -> Result<Answer, CallError> {
        let number = {
            let mut state = self.state();
            state.asked += 1;
            state.tell_keeper();
            state.asked
        };
        let confirmed = |state: &State| match state.ending {
            Ending::NotYet if state.confirmed < number => None,
            Ending::NotYet => state.answer.clone(),
            _ => Some(Ok(Answer::Finished(End::Gone))),
        };
        self.until(confirmed).await
    }

    /// Waits for a result, and polls the keeper meanwhile.
    async fn until<T>(&self, found: impl Fn(&State) -> Option<T>) -> T {
        poll_fn(|context| {
            {
                let mut state = self.state();
                if let Some(found) = found(&state) {
                    return Poll::Ready(found);
                }
                // The result of the poll below is read directly; a wake-up by it would only poll this task again.
                state.callers.retain(|caller| !caller.will_wake(context.waker()));
            }
            self.carry(context);
            let mut state = self.state();
            let found = found(&state);
            if found.is_none() {
                state.callers.push(context.waker().clone());
            }
            found.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn carry(&self, context: &mut Context<'_>) {
        let mut carried = self.keeper();
        let Some(keeper) = carried.as_mut() else { return };
        if keeper.as_mut().poll(context).is_ready() {
            let over = carried.take();
            drop(carried);
            return drop(over);
        }
        drop(carried);
        if self.state().carrier == Carrier::CallersUntilNow {
            self.hand_over();
        }
    }
}

/// The keeper's side.
impl Request {
    /// Waits for the move to the backend's thread: the next step takes long, or needs timers and sockets of that
    /// thread.
    pub(super) async fn lasts(&self) {
        poll_fn(|_| {
            let mut state = self.state();
            if state.carrier == Carrier::Thread {
                return Poll::Ready(());
            }
            state.carrier = Carrier::CallersUntilNow;
            Poll::Pending
        })
        .await;
    }

    /// Completes once the backend's thread polls the keeper, whether or not the keeper requested the move.
    pub(super) async fn has_lasted(&self) {
        let has_lasted = || self.state().carrier == Carrier::Thread;
        poll_fn(|_| if has_lasted() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().over
    }

    /// Number of confirmation requests so far.
    pub(super) fn asked(&self) -> u64 {
        self.state().asked
    }

    /// Waits until the request is released or abandoned.
    pub(super) async fn over(&self) {
        while self.heard(u64::MAX).await != Word::Over {}
    }

    /// Waits for a message that is newer than confirmation request number `asked`.
    pub(super) async fn heard(&self, asked: u64) -> Word {
        poll_fn(|context| {
            let mut state = self.state();
            if state.over {
                return Poll::Ready(Word::Over);
            }
            if state.asked > asked {
                return Poll::Ready(Word::Asked(state.asked));
            }
            // Before the move, the caller that sends a message also polls the keeper.
            if state.carrier == Carrier::Thread {
                state.keeper = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn answer(&self, answer: Result<Answer, CallError>) {
        self.change(|state| state.answer = Some(answer));
    }

    pub(super) fn end(&self, ending: Ending) {
        self.change(|state| state.ending = ending);
    }

    /// The server has confirmed the hold for all confirmation requests up to `asked`.
    pub(super) fn confirm(&self, asked: u64) {
        self.change(|state| state.confirmed = asked);
    }

    /// Sets the end, unless a certain one is set.
    pub(super) fn settle(&self, end: End) {
        self.change(|state| {
            if !matches!(state.ending, Ending::Sure(_)) {
                state.ending = Ending::Sure(end);
            }
        });
    }

    /// Marks all results that are still open as unknown.
    pub(super) fn leave_open(&self) {
        self.change(|state| {
            state.answer.get_or_insert(Err(CallError { sent: true }));
            if state.ending == Ending::NotYet {
                state.ending = Ending::Unsure;
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let callers = std::mem::take(&mut state.callers);
        drop(state);
        callers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn push(&self, push: Push) {
        // The receiver is gone, and its requests are over.
        let _ = self.pushes.send(push);
    }
}

impl State {
    fn tell_keeper(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.wake();
        }
    }
}
