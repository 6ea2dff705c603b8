//! An unbounded channel for the messages to one caller. A tokio channel allocates kilobytes for the first message,
//! while a session may have a million callers, and an acquire sends only a handful of messages.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

struct Mailbox<T>(Mutex<State<T>>);

struct State<T> {
    /// The next message, stored without an allocation: a second one is rarely queued behind it.
    first: Option<T>,
    letters: VecDeque<T>,
    reader: Option<Waker>,
    /// One side was dropped.
    is_over: bool,
}

/// The sending half; there is only one.
pub(crate) struct Writer<T>(Arc<Mailbox<T>>);

/// The receiving half; there is only one.
pub(crate) struct Reader<T>(Arc<Mailbox<T>>);

/// Creates an empty channel.
pub(crate) fn mailbox<T>() -> (Writer<T>, Reader<T>) {
    let state = State { first: None, letters: VecDeque::new(), reader: None, is_over: false };
    let shared = Arc::new(Mailbox(Mutex::new(state)));
    (Writer(shared.clone()), Reader(shared))
}

impl<T> Mailbox<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Writer<T> {
    /// Sends a message, and wakes the reader. Never blocks.
    ///
    /// # Errors
    /// The message itself, if the reader was dropped.
    pub(crate) fn send(&self, letter: T) -> Result<(), T> {
        let mut state = self.0.state();
        if state.is_over {
            return Err(letter);
        }
        if state.first.is_none() && state.letters.is_empty() {
            state.first = Some(letter);
        } else {
            state.letters.push_back(letter);
        }
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(())
    }
}

impl<T> Reader<T> {
    /// The next message; `None` once all are read and the writer was dropped. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| {
            let mut state = self.0.state();
            match state.first.take().or_else(|| state.letters.pop_front()) {
                Some(letter) => Poll::Ready(Some(letter)),
                None if state.is_over => Poll::Ready(None),
                None => {
                    if !state.reader.as_ref().is_some_and(|reader| reader.will_wake(context.waker())) {
                        state.reader = Some(context.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Removes the waker until the next [`Self::recv`]: for a reader that is running, and polls by itself.
    pub(crate) fn look_up(&self) {
        self.0.state().reader = None;
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_over = true;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_over = true;
        let unread = (state.first.take(), std::mem::take(&mut state.letters));
        // Outside of the lock: dropping a message may run arbitrary code.
        drop(state);
        drop(unread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_arrive_in_order_and_then_the_end() {
        let (writer, mut reader) = mailbox();
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            while let Some(letter) = reader.recv().await {
                read.push(letter);
            }
            read
        });
        for letter in 0..5 {
            writer.send(letter).unwrap();
            tokio::task::yield_now().await;
        }
        drop(writer);
        assert_eq!(reading.await.unwrap(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn send_returns_the_message_if_the_reader_was_dropped() {
        let (writer, reader) = mailbox();
        drop(reader);
        assert_eq!(writer.send("unread"), Err("unread"));
    }
}
