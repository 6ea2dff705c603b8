//! The calls of one session of the library. Each request has a keeper on the connections' thread, which does the work;
//! here is only who asks for what.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::{End, LockName, Mode, Seq};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Shared, keeper};
use crate::backend::{Call, CallError, Conn, Submitted, Wanted};
use crate::machine::{Answer, Push};

pub(super) struct AdvisoryConn {
    shared: Arc<Shared>,
    label: Arc<str>,
    pushes: UnboundedSender<Push>,
    requests: Requests,
}

/// Those that hold or wait, or of which something may be left at the server. One that was granted stays until it is
/// finished, so that a late question about it is never taken for a new request.
type Requests = Arc<Mutex<BTreeMap<Seq, Arc<Request>>>>;

/// One request, as its keeper and its callers share it.
pub(super) struct Request {
    pub(super) seq: Seq,
    pub(super) name: LockName,
    pub(super) shared_mode: bool,
    /// Wait if it isn't free.
    pub(super) wait: bool,
    pub(super) meta: String,
    pub(super) label: Arc<str>,
    /// Nobody wants it any more.
    pub(super) over: CancellationToken,
    pushes: UnboundedSender<Push>,
    answer: watch::Sender<Option<Result<Answer, CallError>>>,
    ending: watch::Sender<Ending>,
    /// How many have asked whether it still holds, and up to which of them the server has confirmed it.
    pub(super) asked: watch::Sender<u64>,
    pub(super) confirmed: watch::Sender<u64>,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    NotYet,
    /// Its end was asked for, and no answer came (P12); it is seen to.
    Unsure,
    Sure(End),
}

impl AdvisoryConn {
    pub(super) fn new(shared: Arc<Shared>, label: &str, pushes: UnboundedSender<Push>) -> Self {
        Self { shared, label: label.into(), pushes, requests: Requests::default() }
    }

    fn requests(&self) -> MutexGuard<'_, BTreeMap<Seq, Arc<Request>>> {
        lock(&self.requests)
    }

    /// The request of that number, begun if it is new or if its last try failed (P7).
    fn begin(&self, seq: Seq, want: &Wanted) -> Arc<Request> {
        let mut requests = self.requests();
        if let Some(request) = requests.get(&seq).filter(|request| !request.failed()) {
            return request.clone();
        }
        let request = Arc::new(Request {
            seq,
            // Several names at once are refused before (`Capabilities::multi`).
            name: want.names[0].clone(),
            shared_mode: want.mode == Mode::Shared,
            wait: want.wait,
            meta: String::from_utf8_lossy(&want.meta).into_owned(),
            label: self.label.clone(),
            over: CancellationToken::new(),
            pushes: self.pushes.clone(),
            answer: watch::Sender::new(None),
            ending: watch::Sender::new(Ending::NotYet),
            asked: watch::Sender::new(0),
            confirmed: watch::Sender::new(0),
        });
        requests.insert(seq, request.clone());
        let (shared, kept, book) = (self.shared.clone(), request.clone(), self.requests.clone());
        self.shared.worker.run(Box::pin(async move {
            keeper::keep(&shared, &kept).await;
            if !kept.was_granted() {
                remove(&book, &kept);
            }
        }));
        request
    }
}

fn lock(requests: &Requests) -> MutexGuard<'_, BTreeMap<Seq, Arc<Request>>> {
    requests.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(requests: &Requests, over: &Arc<Request>) {
    let mut requests = lock(requests);
    if requests.get(&over.seq).is_some_and(|request| Arc::ptr_eq(request, over)) {
        requests.remove(&over.seq);
    }
}

impl Conn for AdvisoryConn {
    fn submit(&self, call: Call) -> Submitted {
        match call {
            // Connections are made when they are needed, and each is kept alive by its own probes.
            Call::Open { .. } => Submitted::Answered(Ok(Answer::Opened)),
            Call::KeepAlive => Submitted::Answered(Ok(Answer::KeptAlive)),
            Call::Acquire { seq, want, .. } => {
                let request = self.begin(seq, &want);
                if request.was_granted() {
                    return Submitted::under_way(async move { request.confirmed().await });
                }
                Submitted::under_way(async move { request.answered().await })
            }
            Call::Finish { target, .. } => {
                let Some(request) = self.requests().get(&target).cloned() else {
                    return Submitted::Answered(Ok(Answer::Finished(End::Gone)));
                };
                request.over.cancel();
                let requests = self.requests.clone();
                Submitted::under_way(async move {
                    let end = request.ended().await?;
                    remove(&requests, &request);
                    Ok(Answer::Finished(end))
                })
            }
            Call::Close => {
                let left: Vec<Arc<Request>> = self.requests().values().cloned().collect();
                left.iter().for_each(|request| request.over.cancel());
                Submitted::under_way(async move {
                    for request in left {
                        // One that is in doubt is seen to without us.
                        let _ = request.ended().await;
                    }
                    Ok(Answer::Closed)
                })
            }
        }
    }
}

impl Drop for AdvisoryConn {
    fn drop(&mut self) {
        self.requests().values().for_each(|request| request.over.cancel());
    }
}

impl Request {
    /// Its last try failed: whoever asks again begins anew.
    fn failed(&self) -> bool {
        matches!(*self.answer.borrow(), Some(Err(_)))
    }

    fn was_granted(&self) -> bool {
        matches!(*self.answer.borrow(), Some(Ok(Answer::Granted(_))))
    }

    /// Asks the server whether it still holds (P7-a).
    async fn confirmed(&self) -> Result<Answer, CallError> {
        let (mut confirmed, mut endings) = (self.confirmed.subscribe(), self.ending.subscribe());
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        let holds = tokio::select! {
            asked = confirmed.wait_for(|confirmed| *confirmed >= number) => asked.is_ok(),
            ended = endings.wait_for(|ending| *ending != Ending::NotYet) => ended.is_err(),
        };
        if holds { self.answered().await } else { Ok(Answer::Finished(End::Gone)) }
    }

    async fn answered(&self) -> Result<Answer, CallError> {
        let mut answers = self.answer.subscribe();
        let answer = answers.wait_for(Option::is_some).await;
        // The sender is here.
        answer.ok().and_then(|answer| answer.clone()).unwrap_or(Err(CallError { sent: true }))
    }

    async fn ended(&self) -> Result<End, CallError> {
        let mut endings = self.ending.subscribe();
        let ending = endings.wait_for(|ending| *ending != Ending::NotYet).await.map(|ending| *ending);
        match ending {
            Ok(Ending::Sure(end)) => Ok(end),
            _ => Err(CallError { sent: true }),
        }
    }

    pub(super) fn answer(&self, answer: Result<Answer, CallError>) {
        self.answer.send_replace(Some(answer));
    }

    pub(super) fn end(&self, ending: Ending) {
        self.ending.send_replace(ending);
    }

    /// The end, if none is certain yet.
    pub(super) fn settle(&self, end: End) {
        self.ending.send_if_modified(|ending| {
            let unsure = !matches!(ending, Ending::Sure(_));
            if unsure {
                *ending = Ending::Sure(end);
            }
            unsure
        });
    }

    /// Says of what has not been said yet that it is not known.
    pub(super) fn give_up(&self) {
        self.answer.send_if_modified(|answer| {
            let unsaid = answer.is_none();
            answer.get_or_insert(Err(CallError { sent: true }));
            unsaid
        });
        self.ending.send_if_modified(|ending| {
            let unsaid = *ending == Ending::NotYet;
            if unsaid {
                *ending = Ending::Unsure;
            }
            unsaid
        });
    }

    pub(super) fn push(&self, push: Push) {
        // Whoever listened is gone, and its requests are over.
        let _ = self.pushes.send(push);
    }
}
