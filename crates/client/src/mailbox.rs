//! Letters to one caller. A channel of tokio's takes kilobytes for the first letter; a session may have a million
//! callers, and an acquire is a handful of letters.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

struct Mailbox<T>(Mutex<State<T>>);

struct State<T> {
    /// The next one, where it takes no memory of its own: hardly ever is there another behind it.
    first: Option<T>,
    letters: VecDeque<T>,
    reader: Option<Waker>,
    /// One side is gone.
    is_over: bool,
}

/// The side that writes; one only.
pub(crate) struct Writer<T>(Arc<Mailbox<T>>);

/// The side that reads; one only.
pub(crate) struct Reader<T>(Arc<Mailbox<T>>);

/// An empty mailbox.
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
    /// Puts a letter in, and wakes the reader. Never blocks.
    ///
    /// # Errors
    /// The letter itself, if the reader is gone.
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
    /// The next letter; `None` once all are read and the writer is gone. Cancel-safe.
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

    /// A letter wakes nobody before the next [`Self::recv`]: for a reader that is running, and looks by itself.
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
        // Not under the lock: a letter may hold anything.
        drop(state);
        drop(unread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn letters_arrive_in_order_and_the_end_after_them() {
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
    fn who_writes_to_one_who_is_gone_gets_the_letter_back() {
        let (writer, reader) = mailbox();
        drop(reader);
        assert_eq!(writer.send("unread"), Err("unread"));
    }
}
