//! The calls of one session of the library. Each request has a keeper, which does the work. This module maps calls to
//! requests, and moves long-lived keepers to the backend's thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::{End, Mode, Seq};
use tokio::sync::mpsc::UnboundedSender;

use super::request::{Request, Wants};
use super::{Shared, keeper};
use crate::backend::{AcquireRequest, Call, Conn, Submitted};
use crate::machine::{Answer, Push};

/// A request that is still active after one to two of these intervals moves to the backend's thread. Long compared to a
/// few round trips, and short compared to anything that only that thread does: probes, limits, detection of losses.
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
    /// Requests that hold or wait, or may have left something at the server. A granted one stays until it is finished,
    /// so that a late retry of its acquire is never taken for a new request.
    requests: BTreeMap<Seq, Arc<Request>>,
    /// `handed_over`: last seq moved to the backend's thread; `next`: last seq that the next sweep moves.
    handed_over: u64,
    next: u64,
    /// Whether the sweep task runs.
    is_watched: bool,
}

impl AdvisoryConn {
    pub(super) fn new(shared: Arc<Shared>, label: &str, pushes: UnboundedSender<Push>) -> Self {
        Self { shared, label: label.into(), pushes, book: Arc::default() }
    }

    /// The request with this number; started if it is new or if its last try failed (P7).
    fn begin(&self, seq: Seq, acquire: &AcquireRequest) -> Arc<Request> {
        let mut pages = self.book.pages();
        if let Some(request) = pages.requests.get(&seq).filter(|request| !request.failed()) {
            return request.clone();
        }
        let wants = Wants {
            // Multiple names per request are refused earlier (`Capabilities::multi`).
            name: acquire.names[0].clone(),
            shared: acquire.mode == Mode::Shared,
            wait: acquire.wait,
            meta: String::from_utf8_lossy(&acquire.meta).into_owned(),
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
        // The sweep may have passed the number of a retried request.
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

/// Moves long-lived requests to the backend's thread, until no candidate is left.
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

    /// Requests that were present at the last sweep and still are; and whether another sweep is needed.
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
            // Connections are opened on demand, and each is kept alive by its own probes.
            Call::Open { .. } => Submitted::Answered(Ok(Answer::Opened)),
            Call::KeepAlive => Submitted::Answered(Ok(Answer::KeptAlive)),
            Call::Acquire { seq, request: acquire, .. } => {
                let request = self.begin(seq, &acquire);
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
                        // The keeper cleans up a request in doubt by itself.
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
