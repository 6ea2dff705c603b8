//! One request, as its keeper and its callers share it, and who carries the keeper.
//!
//! A keeper (`keeper`) is one future from the first try to the end of the hold. Whoever waits for what it will say polls
//! it, on its own task: most requests are over within a few round trips, and none of those crosses to another thread. What
//! lasts is handed to the backend's thread, which needs no caller: a runtime that stands still, or has ended, loses no lock.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use lockkeeper_core::{End, LockName, Seq};
use tokio::sync::mpsc::UnboundedSender;

use crate::backend::{BoxFuture, CallError};
use crate::machine::{Answer, Push};
use crate::worker::Worker;

pub(super) struct Request {
    pub(super) seq: Seq,
    pub(super) wants: Wants,
    pushes: UnboundedSender<Push>,
    worker: Worker,
    state: Mutex<State>,
    /// The keeper, while callers carry it.
    keeper: Mutex<Option<BoxFuture<()>>>,
}

/// What it asks for.
pub(super) struct Wants {
    pub(super) name: LockName,
    pub(super) shared: bool,
    /// Wait if it isn't free.
    pub(super) wait: bool,
    pub(super) meta: String,
    pub(super) label: Arc<str>,
}

struct State {
    answer: Option<Result<Answer, CallError>>,
    ending: Ending,
    /// Nobody wants it any more.
    over: bool,
    /// How many have asked whether it still holds, and up to which of them the server has confirmed it.
    asked: u64,
    confirmed: u64,
    carrier: Carrier,
    /// Who waits for the keeper to say something; and the keeper, once it is on the backend's thread.
    callers: Vec<Waker>,
    keeper: Option<Waker>,
}

/// Who polls a keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    /// Whoever waits for what it will say.
    Callers,
    /// They are to hand it over.
    CallersUntilNow,
    Thread,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    NotYet,
    /// Its end was asked for, and no answer came (P12); it is seen to.
    Unsure,
    Sure(End),
}

/// What callers tell a keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// Nobody wants the request any more.
    Over,
    /// The so-manieth question whether it still holds.
    Asked(u64),
}

impl Request {
    pub(super) fn new(seq: Seq, wants: Wants, pushes: UnboundedSender<Push>, worker: Worker) -> Self {
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

/// For callers.
impl Request {
    /// Begins it: the keeper is carried by whoever waits for it.
    pub(super) fn begin(&self, keeper: BoxFuture<()>) {
        *self.keeper() = Some(keeper);
    }

    /// Has the backend's thread carry it from here on, whoever waits for it.
    pub(super) fn hand_over(&self) {
        let keeper = self.keeper().take();
        if let Some(keeper) = keeper {
            self.state().carrier = Carrier::Thread;
            self.worker.run(keeper);
        }
    }

    /// Its last try failed: whoever asks again begins anew.
    pub(super) fn failed(&self) -> bool {
        matches!(self.state().answer, Some(Err(_)))
    }

    pub(super) fn was_granted(&self) -> bool {
        matches!(self.state().answer, Some(Ok(Answer::Granted(_))))
    }

    /// Nobody wants it any more.
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

    /// Asks the server whether it still holds (P7-a).
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

    /// Waits for the keeper, and carries it meanwhile.
    async fn until<T>(&self, found: impl Fn(&State) -> Option<T>) -> T {
        poll_fn(|context| {
            {
                let mut state = self.state();
                if let Some(found) = found(&state) {
                    return Poll::Ready(found);
                }
                // What comes of it is read right away: a task that is woken while it runs is run once more.
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

/// For the keeper.
impl Request {
    /// From here on it is carried by the backend's thread: what comes takes long, or needs timers and sockets of its own.
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

    /// Is over once the backend's thread carries it, however it came there.
    pub(super) async fn has_lasted(&self) {
        let has_lasted = || self.state().carrier == Carrier::Thread;
        poll_fn(|_| if has_lasted() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().over
    }

    /// How many have asked until now whether it still holds.
    pub(super) fn asked(&self) -> u64 {
        self.state().asked
    }

    /// Waits until nobody wants it any more.
    pub(super) async fn over(&self) {
        while self.heard(u64::MAX).await != Word::Over {}
    }

    /// Waits for a word that is new to whoever has heard of so many questions.
    pub(super) async fn heard(&self, asked: u64) -> Word {
        poll_fn(|context| {
            let mut state = self.state();
            if state.over {
                return Poll::Ready(Word::Over);
            }
            if state.asked > asked {
                return Poll::Ready(Word::Asked(state.asked));
            }
            // Until then whoever has a word for it carries it next.
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

    /// The server has confirmed it for all who asked until then.
    pub(super) fn confirm(&self, asked: u64) {
        self.change(|state| state.confirmed = asked);
    }

    /// The end, if none is certain yet.
    pub(super) fn settle(&self, end: End) {
        self.change(|state| {
            if !matches!(state.ending, Ending::Sure(_)) {
                state.ending = Ending::Sure(end);
            }
        });
    }

    /// Says of what has not been said yet that it is not known.
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
        // Whoever listened is gone, and its requests are over.
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
