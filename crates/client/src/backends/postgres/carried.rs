//! The I/O half of a connection, as created by `tokio_postgres`, driven by its owner.

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Connection, Notification};

use super::answer::chain;
use super::roaming::Roaming;
use super::tls::Tls;

/// The I/O half. If it is dropped after its client, it sends a Terminate message, unless that would block.
pub(super) struct Carried {
    connection: Connection<Roaming, <Tls as MakeTlsConnect<Roaming>>::Stream>,
    socket: Roaming,
    stirred: Arc<Stirred>,
    waker: Waker,
    /// Notifications that were not returned yet.
    notices: Vec<Notification>,
    /// The reason of the end, once the connection has ended.
    ended: Option<String>,
}

/// Set when one half has data for the other. One task drives both, so that no wake-up is needed.
struct Stirred(AtomicBool);

impl Wake for Stirred {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Carried {
    pub(super) fn new(
        connection: Connection<Roaming, <Tls as MakeTlsConnect<Roaming>>::Stream>,
        socket: Roaming,
    ) -> Self {
        let stirred = Arc::new(Stirred(AtomicBool::new(false)));
        let waker = stirred.clone().into();
        Self { connection, socket, stirred, waker, notices: Vec::new(), ended: None }
    }

    /// Drives the connection until `answer` is ready. Cancel-safe: the request stays sent, and its answer is skipped.
    ///
    /// # Errors
    /// Why the connection ended before.
    pub(super) async fn until<T>(&mut self, answer: impl Future<Output = T>) -> Result<T, String> {
        let mut answer = pin!(answer);
        poll_fn(|context| self.poll_until(context, answer.as_mut())).await
    }

    fn poll_until<T>(
        &mut self,
        context: &Context<'_>,
        mut answer: Pin<&mut impl Future<Output = T>>,
    ) -> Poll<Result<T, String>> {
        if self.ended.is_none() {
            self.socket.enter(context);
        }
        let waker = self.waker.clone();
        let mut inner = Context::from_waker(&waker);
        loop {
            self.stirred.0.store(false, Ordering::Relaxed);
            // This poll also sends the request.
            if let Poll::Ready(answer) = answer.as_mut().poll(&mut inner) {
                return Poll::Ready(Ok(answer));
            }
            if let Some(why) = &self.ended {
                return Poll::Ready(Err(why.clone()));
            }
            if self.step(&mut inner).is_pending() && !self.stirred.0.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
        }
    }

    /// Reads and writes without blocking. Ready if a message arrived, or if the connection ended.
    fn step(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.connection.poll_message(context) {
            Poll::Ready(Some(Ok(AsyncMessage::Notification(notice)))) => self.notices.push(notice),
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(error))) => self.ended = Some(chain(&error)),
            Poll::Ready(None) => self.ended = Some("closed".to_owned()),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(())
    }

    /// Drives the connection until a notification arrives. Cancel-safe.
    ///
    /// # Errors
    /// Why the connection ended.
    pub(super) async fn notices(&mut self) -> Result<Vec<Notification>, String> {
        let mut never = pin!(pending::<()>());
        poll_fn(|context| {
            let ended = self.poll_until(context, never.as_mut());
            if !self.notices.is_empty() {
                return Poll::Ready(Ok(std::mem::take(&mut self.notices)));
            }
            ended.map(|ended| ended.map(|()| Vec::new()))
        })
        .await
    }

    /// Discards pending notifications.
    pub(super) fn forget_notices(&mut self) {
        self.notices.clear();
    }

    /// Whether the connection is still open, judged by data that has already arrived. Needs no runtime.
    pub(super) fn look(&mut self) -> bool {
        let waker = self.waker.clone();
        let mut context = Context::from_waker(&waker);
        self.socket.look(true);
        while self.ended.is_none() && self.step(&mut context).is_ready() {}
        self.socket.look(false);
        self.ended.is_none()
    }

    /// Drives the connection to its end, for clients on any thread; `heard` receives notifications. Returns the reason
    /// of the end.
    pub(super) async fn carry(mut self, mut heard: impl FnMut(Notification)) -> String {
        poll_fn(|context| {
            self.socket.enter(context);
            // Each client wakes this task directly.
            while self.step(context).is_ready() {
                self.notices.drain(..).for_each(&mut heard);
                if let Some(why) = &self.ended {
                    return Poll::Ready(why.clone());
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.look();
        }
    }
}
