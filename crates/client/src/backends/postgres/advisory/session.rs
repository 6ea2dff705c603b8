//! The calls of one session of the library. Each request has a keeper, which does the work; here is only who asks for
//! what, and that no keeper is left to its callers for long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::{End, Mode, Seq};
use tokio::sync::mpsc::UnboundedSender;

use super::request::{Request, Wants};
use super::{Shared, keeper};
use crate::backend::{Call, Conn, Submitted, Wanted};
use crate::machine::{Answer, Push};

/// A request that is not over by now, or by the double of it, is handed to the backend's thread. Long against a few round
/// trips, and short against anything that only that thread may do: probes, limits, hearing of losses.
const SOON: Duration = Duration::from_millis(20);

pub(super) struct AdvisoryConn {
    shared: Arc<Shared>,
    label: Arc<str>,
    pushes: UnboundedSender<Push>,
    book: Arc<Book>,
}

/// The requests of a session.
#[derive(Default)]
struct Book(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    /// Those that hold or wait, or of which something may be left at the server. One that was granted stays until it is
    /// finished, so that a late question about it is never taken for a new request.
    requests: BTreeMap<Seq, Arc<Request>>,
    /// All up to the first were handed over, and the next ones up to the second are when it is looked again.
    handed_over: u64,
    next: u64,
    /// Somebody looks again.
    is_watched: bool,
}

impl AdvisoryConn {
    pub(super) fn new(shared: Arc<Shared>, label: &str, pushes: UnboundedSender<Push>) -> Self {
        Self { shared, label: label.into(), pushes, book: Arc::default() }
    }

    /// The request of that number, begun if it is new or if its last try failed (P7).
    fn begin(&self, seq: Seq, want: &Wanted) -> Arc<Request> {
        let mut pages = self.book.pages();
        if let Some(request) = pages.requests.get(&seq).filter(|request| !request.failed()) {
            return request.clone();
        }
        let wants = Wants {
            // Several names at once are refused before (`Capabilities::multi`).
            name: want.names[0].clone(),
            shared: want.mode == Mode::Shared,
            wait: want.wait,
            meta: String::from_utf8_lossy(&want.meta).into_owned(),
            label: self.label.clone(),
        };
        let worker = self.shared.worker.clone();
        let request = Arc::new(Request::new(seq, wants, self.pushes.clone(), worker));
        pages.requests.insert(seq, request.clone());
        let (shared, kept, book) = (self.shared.clone(), request.clone(), self.book.clone());
        request.begin(Box::pin(async move {
            keeper::keep(&shared, &kept).await;
            if !kept.was_granted() {
                book.remove(&kept);
            }
        }));
        // One that is tried again may be behind those that are looked at.
        let again = seq.0 <= pages.next;
        let watches = !std::mem::replace(&mut pages.is_watched, true);
        drop(pages);
        if again {
            request.hand_over();
        }
        if watches {
            self.shared.worker.run(Box::pin(watch(self.book.clone())));
        }
        request
    }
}

/// Hands over what lasts, until nothing is left that could.
async fn watch(book: Arc<Book>) {
    loop {
        tokio::time::sleep(SOON).await;
        let (last, watched) = book.turn();
        last.iter().for_each(|request| request.hand_over());
        if !watched {
            return;
        }
    }
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, over: &Arc<Request>) {
        let mut pages = self.pages();
        if pages.requests.get(&over.seq).is_some_and(|request| Arc::ptr_eq(request, over)) {
            pages.requests.remove(&over.seq);
        }
    }

    /// What was there when it was looked last, and still is; and whether it will be looked again.
    fn turn(&self) -> (Vec<Arc<Request>>, bool) {
        let mut pages = self.pages();
        let looked_at = Seq(pages.handed_over + 1)..Seq(pages.next + 1);
        let last = pages.requests.range(looked_at).map(|(_, request)| request.clone()).collect();
        pages.handed_over = pages.next;
        let newest = pages.requests.last_key_value().map_or(0, |(newest, _)| newest.0);
        pages.is_watched = newest > pages.next;
        pages.next = pages.next.max(newest);
        (last, pages.is_watched)
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
                let Some(request) = self.book.pages().requests.get(&target).cloned() else {
                    return Submitted::Answered(Ok(Answer::Finished(End::Gone)));
                };
                request.give_up();
                let book = self.book.clone();
                Submitted::under_way(async move {
                    let end = request.ended().await?;
                    book.remove(&request);
                    Ok(Answer::Finished(end))
                })
            }
            Call::Close => {
                let left: Vec<Arc<Request>> = self.book.pages().requests.values().cloned().collect();
                left.iter().for_each(|request| request.give_up());
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
        let left: Vec<Arc<Request>> = self.book.pages().requests.values().cloned().collect();
        for request in left {
            request.give_up();
            request.hand_over();
        }
    }
}
