//! How the calls to the nodes are carried: on the task of whoever waits for them, and in the background once nobody does.
//!
//! A task for each of them, or one for all, would cost more than what they do. Each is a step of its own that is taken
//! over by the library's thread if it is dropped before its end.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use super::tally::Said;
use crate::backend::BoxFuture;
use crate::mailbox::Reader;

/// What a node says next, while those who ask are carried along. `None` once all have said something.
pub(super) async fn next_said(
    asking: &mut Vec<BoxFuture<()>>,
    said: &mut Reader<(usize, Said)>,
) -> Option<(usize, Said)> {
    poll_fn(|context| {
        // What is said in this step is read in it.
        said.look_up();
        step(asking, context);
        pin!(said.recv()).poll(context)
    })
    .await
}

/// One step of each, side by side.
pub(super) fn step(all: &mut Vec<BoxFuture<()>>, context: &mut Context<'_>) {
    all.retain_mut(|one| one.as_mut().poll(context).is_pending());
}

/// Carries them to their ends in the background.
pub(super) fn go_on(mut all: Vec<BoxFuture<()>>) {
    if !all.is_empty() {
        tokio::spawn(poll_fn(move |context| {
            step(&mut all, context);
            if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        }));
    }
}
