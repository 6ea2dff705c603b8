//! A client's stream: its reader, its buffer, and its end.
//!
//! Responsible for: buffered answers leave together, at most 4,096 a frame; a client that does not read loses
//! its own stream and affects no other; and `linger` starts only for streams that the client itself has
//! closed.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_replica::{Event, StreamCloseCause, StreamId};
use lockkeeper_wire::request::{self, Request};
use lockkeeper_wire::v1::{self, StreamEndReason, server_item::What};
use parking_lot::{Mutex, MutexGuard};
use prost::Message as _;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::codegen::tokio_stream::Stream as _;
use tonic::{Status, Streaming};

use super::ClientSessions;
use crate::access::Identity;
use crate::front::callers::{Caller, Callers, denied_acquire, is_counted};
use crate::front::transport::{Connection, WakeReader};
use crate::inbox::Source;
use crate::observe;
use lockkeeper_places::TakenPlace;

/// The number of unsent answers (about 8 MiB) above which a client must keep reading: see [`LOOKS_MAX`].
const ITEMS_MAX: usize = 1 << 16;
/// The hard limit of unsent answers, about 128 MiB: as many as a session may have requests.
const ITEMS_HARD_MAX: usize = 1 << 20;
/// A client above [`ITEMS_MAX`] that takes no frame during this many checks loses its stream. Checks are
/// counted, not their time: a stall of this process is one check, however long it was (P9).
const LOOKS_MAX: u32 = 10;
const LOOK: Duration = Duration::from_millis(500);
/// Maximum number of answers in one frame. An answer has at most about 860 bytes, so a frame stays below the
/// size that clients accept.
const FRAME_ITEMS_MAX: usize = 4096;
/// Time limit for the first frame of a stream.
const FIRST_FRAME: Duration = Duration::from_secs(30);

/// An open stream.
pub(in crate::front) struct SessionStream {
    pub(super) id: StreamId,
    pub(super) source: Source,
    connection: Arc<Connection>,
    caller: Caller,
    _place: TakenPlace<Identity>,
    /// Another node relays the stream.
    is_relayed: bool,
    state: Mutex<StreamBuffer>,
}

#[derive(Default)]
struct StreamBuffer {
    items: VecDeque<v1::ServerItem>,
    /// The memory of `items`, in bytes: an estimate.
    bytes: usize,
    /// Number of frames that the client has read from the buffer.
    taken: u64,
    /// Whether a task checks that the client keeps reading, since it has more than [`ITEMS_MAX`] unsent
    /// answers.
    is_watched: bool,
    /// The last item to send; once it is set, no further answers are sent.
    end: Option<v1::StreamEnd>,
    is_over: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The reason why reading a stream ended.
enum StreamClose {
    /// The client closed the stream.
    ByClient,
    /// This side closed the stream, or the reason is unknown.
    Otherwise,
    /// The client violated the protocol.
    Protocol(String),
}

impl SessionStream {
    pub(super) fn new(
        id: StreamId,
        connection: Arc<Connection>,
        caller: Caller,
        place: TakenPlace<Identity>,
        is_relayed: bool,
    ) -> Arc<Self> {
        let source = Source { caller: caller.identity.clone(), lane: id.0 };
        let state = Mutex::default();
        let stream = Arc::new(Self { id, source, connection, caller, _place: place, is_relayed, state });
        stream.connection.opened(id, stream.clone());
        stream
    }

    /// Buffers answers for the client. The number of unsent answers ends the stream only above
    /// [`ITEMS_HARD_MAX`]: a client with many requests may get many answers at once.
    pub(in crate::front) fn deliver(self: &Arc<Self>, items: Vec<v1::ServerItem>) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        let unread = &self.connection.transport().unread;
        let bytes = items.iter().map(memory).sum::<usize>();
        unread.add(bytes);
        state.bytes += bytes;
        state.items.extend(items);
        let count = state.items.len();
        if count > ITEMS_HARD_MAX || state.bytes > unread.share() {
            drop(state);
            return self.too_slow(count);
        }
        if count > ITEMS_MAX && !std::mem::replace(&mut state.is_watched, true) {
            tokio::spawn(self.clone().see_that_it_reads());
        }
        wake(&mut state.writer);
    }

    /// Ends the stream if the client, which has more than [`ITEMS_MAX`] unsent answers, takes none of them.
    async fn see_that_it_reads(self: Arc<Self>) {
        let mut clock = interval(LOOK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut taken, mut looks) = (self.lock().taken, 0);
        while looks < LOOKS_MAX {
            clock.tick().await;
            let mut state = self.lock();
            if state.is_over || state.items.len() <= ITEMS_MAX {
                state.is_watched = false;
                return;
            }
            looks = if state.taken == taken { looks + 1 } else { 0 };
            taken = state.taken;
        }
        let count = self.lock().items.len();
        self.too_slow(count);
    }

    fn too_slow(&self, count: usize) {
        let text = format!(
            "the client did not read its answers: {count} wait here, {ITEMS_MAX} may; read the stream while you write, then \
             connect again"
        );
        self.forget_items();
        observe::stream_refused("too-slow");
        tracing::warn!(stream = self.id.0, "a client's stream ends: it did not read its answers");
        self.end(stream_end(StreamEndReason::TooSlow, text));
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    fn forget_items(&self) {
        let mut state = self.lock();
        state.items = VecDeque::new();
        self.connection.transport().unread.subtract(std::mem::take(&mut state.bytes));
    }

    /// Sends `end` as the last item; nothing more is read.
    pub(in crate::front) fn end(&self, end: v1::StreamEnd) {
        let mut state = self.lock();
        if !state.is_over {
            state.end = Some(end);
            state.is_over = true;
        }
        wake(&mut state.writer);
        wake(&mut state.reader);
    }

    /// Reads the client's frames until the stream ends.
    pub(in crate::front) async fn read(
        self: Arc<Self>,
        sessions: Arc<ClientSessions>,
        mut inbound: Streaming<v1::ClientFrame>,
    ) {
        let replica = &sessions.replica;
        let mut waiting_number = None;
        let mut silence = Box::pin(tokio::time::sleep(FIRST_FRAME));
        let mut last_frame = None;
        let idle_timeout = self.connection.transport().limits.idle_timeout;
        let ended = poll_fn(|cx| {
            loop {
                // The unread input of a connection that this node closes is dropped.
                if self.is_over(cx) || self.connection.kill.is_cancelled() {
                    return Poll::Ready(StreamClose::Otherwise);
                }
                while silence.as_mut().poll(cx).is_ready() {
                    let Some(last) = last_frame else {
                        let text = format!("nothing was said on this stream for {} s", FIRST_FRAME.as_secs());
                        return Poll::Ready(StreamClose::Protocol(text));
                    };
                    let now = Instant::now();
                    let is_silent = last + idle_timeout <= now;
                    if is_silent {
                        replica.push_from(&self.source, Event::StreamSilent(self.id));
                    }
                    silence.as_mut().reset(if is_silent { now } else { last } + idle_timeout);
                }
                if replica.inbox.poll_room(&self.source, &mut waiting_number, cx).is_pending() {
                    return Poll::Pending;
                }
                match Pin::new(&mut inbound).poll_next(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        last_frame = Some(Instant::now());
                        let bytes = replica.has_barrier().then(|| frame.encoded_len());
                        let sampled = sessions.traced.as_ref().map(|traced| traced.sampled(&frame.items));
                        let (requests, refusals) = match request::requests(frame.items) {
                            Ok(read) => read,
                            Err(malformed) => {
                                return Poll::Ready(StreamClose::Protocol(malformed.to_string()));
                            }
                        };
                        if !refusals.is_empty() {
                            self.deliver(refusals);
                        }
                        let requests = self.permitted(&sessions.callers, requests);
                        if let Some((traced, sampled)) = sessions.traced.as_ref().zip(sampled) {
                            traced.arrived(self.id, sampled, &requests);
                        }
                        replica.push_from(&self.source, Event::Frame(self.id, requests));
                        if let Some(bytes) = bytes {
                            self.connection.handed_on(self.id, bytes);
                        }
                    }
                    Poll::Ready(Some(Err(status))) => return Poll::Ready(self.failed(&status)),
                    Poll::Ready(None) => return Poll::Ready(StreamClose::ByClient),
                    Poll::Pending => {
                        self.connection.idle(self.id);
                        return Poll::Pending;
                    }
                }
            }
        })
        .await;
        // If this node closed the connection, the end may look like one by the client; so may that of a node
        // that relays the stream.
        let by_client = matches!(ended, StreamClose::ByClient)
            && !self.is_relayed
            && !self.connection.kill.is_cancelled();
        let cause = if by_client { StreamCloseCause::Client } else { StreamCloseCause::Service };
        if let StreamClose::Protocol(text) = ended {
            observe::stream_refused("protocol");
            tracing::warn!(stream = self.id.0, "a client's stream ends: {text}");
            self.end(stream_end(StreamEndReason::Protocol, text));
        }
        replica.push_from(&self.source, Event::StreamClosed { stream: self.id, cause });
        sessions.forget_stream(self.id);
        self.connection.closed(self.id);
        // The buffered answers are still sent; but if the client is gone, the writer must not wait for
        // further ones.
        self.finish();
    }

    /// Marks requests as denied if the client may not make them: acquires without the permission, and
    /// requests above the rate limit. Keep-alives, attaches, releases and ends of sessions are never limited.
    fn permitted(&self, callers: &Callers, mut requests: Vec<Request>) -> Vec<Request> {
        let identity = &self.caller.identity;
        let Some(rights) = callers.access.rights(identity) else { return requests };
        for request in &mut requests {
            if !is_counted(request) {
                continue;
            }
            let denied =
                denied_acquire(&rights, identity, request).map(|text| (v1::RefusedCode::Denied, text));
            let limited =
                || Some((v1::RefusedCode::Limit, callers.access.count_request(&rights, identity).err()?));
            let Some((code, text)) = denied.or_else(limited) else { continue };
            match code {
                v1::RefusedCode::Denied => callers.refused("denied", &self.caller, &text),
                _ => callers.over_quota("requests-per-second", &self.caller, &text),
            }
            let refused = v1::Refused { code: code.into(), text, secret_prefix: 0 };
            *request = Request::Denied { request: Box::new(request.clone()), refused };
        }
        requests
    }

    /// The reason why a read failed.
    fn failed(&self, status: &Status) -> StreamClose {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(status);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<h2::Error>() {
                let reset = error.is_reset() && error.is_remote();
                let by_client = reset || self.connection.is_closed_by_peer();
                return if by_client { StreamClose::ByClient } else { StreamClose::Otherwise };
            }
            cause = error.source();
        }
        if self.connection.is_closed_by_peer() {
            return StreamClose::ByClient;
        }
        if self.connection.kill.is_cancelled() {
            return StreamClose::Otherwise;
        }
        StreamClose::Protocol(status.message().to_owned())
    }

    fn finish(&self) {
        let mut state = self.lock();
        state.is_over = true;
        wake(&mut state.writer);
    }

    fn is_over(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lock();
        match &mut state.reader {
            Some(reader) if reader.will_wake(cx.waker()) => {}
            reader => *reader = Some(cx.waker().clone()),
        }
        state.is_over
    }

    fn lock(&self) -> MutexGuard<'_, StreamBuffer> {
        self.state.lock()
    }
}

impl WakeReader for SessionStream {
    fn wake_reader(&self) {
        if let Some(reader) = &self.lock().reader {
            reader.wake_by_ref();
        }
    }
}

/// The memory of an answer, in bytes. Only refusals have a text that matters; other answers with a text are
/// rare.
fn memory(item: &v1::ServerItem) -> usize {
    let text = if let Some(What::Refused(refused)) = &item.what { refused.text.len() } else { 0 };
    size_of::<v1::ServerItem>() + text
}

impl Drop for SessionStream {
    fn drop(&mut self) {
        self.forget_items();
    }
}

/// The last item of a stream that this node ends.
pub(in crate::front) fn stream_end(reason: StreamEndReason, text: String) -> v1::StreamEnd {
    v1::StreamEnd { reason: reason.into(), text, ..v1::StreamEnd::default() }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// The frames that are sent to the client.
pub(in crate::front) struct StreamResponses(pub(in crate::front) Arc<SessionStream>);

impl tonic::codegen::tokio_stream::Stream for StreamResponses {
    type Item = Result<v1::ServerFrame, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.lock();
        let count = state.items.len().min(FRAME_ITEMS_MAX);
        if count > 0 {
            let items: Vec<_> = state.items.drain(..count).collect();
            let bytes = items.iter().map(memory).sum::<usize>();
            state.bytes -= bytes;
            self.0.connection.transport().unread.subtract(bytes);
            state.taken += 1;
            return Poll::Ready(Some(Ok(v1::ServerFrame { items })));
        }
        if let Some(end) = state.end.take() {
            let last = v1::ServerItem { session: 0, seq: 0, what: Some(What::StreamEnd(end)) };
            return Poll::Ready(Some(Ok(v1::ServerFrame { items: vec![last] })));
        }
        if state.is_over {
            return Poll::Ready(None);
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}
