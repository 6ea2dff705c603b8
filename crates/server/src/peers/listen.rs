//! Connections that other nodes open.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_wire::peer::{Hello, Lane, RefusalCode};
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::handshake::{self, Greeter, NoGuest};
use crate::tls::PeerStream;
use lockkeeper_places::{Places, network};

/// Most handshakes with unidentified nodes at the same time; half of them from one address.
const GREETINGS_MAX: usize = 128;
/// The pause after a failed accept, for want of file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);
/// Most refusals that are remembered: unidentified nodes can cause any number of different texts.
const SAID_MAX: usize = 256;

/// Refusals that were logged. Each is logged once, as a refused node tries again every second.
#[derive(Default)]
struct LoggedRefusals {
    /// The node, and a hash of the text: the other side can choose the text's length.
    texts: BTreeSet<(u64, u64)>,
    hasher: RandomState,
}

impl LoggedRefusals {
    /// Whether this text was not yet logged for this node.
    fn is_news(&mut self, node: u64, text: &str) -> bool {
        if self.texts.len() >= SAID_MAX {
            self.texts.clear();
        }
        self.texts.insert((node, self.hasher.hash_one(text)))
    }

    /// To be called when the node was accepted: later refusals of it are logged again.
    fn forget(&mut self, node: u64) {
        self.texts.retain(|(of, _)| *of != node);
    }
}

/// Answers incoming connections, for as long as it is polled. `number` is called for each accepted
/// connection; `take` gets that number with the connection, once both nodes have accepted each other.
pub(super) async fn listen<N: Copy + Send + 'static>(
    listener: &TcpListener,
    own: Arc<dyn Greeter>,
    lanes: &'static [Lane],
    number: impl Fn() -> N,
    take: impl Fn(N, PeerStream, Hello) + Clone + Send + 'static,
) {
    let said = Arc::new(Mutex::new(LoggedRefusals::default()));
    let greetings = Places::new(GREETINGS_MAX);
    loop {
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a peer's connection could not be accepted: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // Closed at once rather than left in the queue, where other nodes would wait behind silent
        // connections.
        let Ok(place) = greetings.take(Some(network(address.ip()))) else {
            tracing::debug!(%address, "a connection from {address} was closed at once: too many are in their handshakes");
            continue;
        };
        let (own, take, said, number) = (own.clone(), take.clone(), said.clone(), number());
        tokio::spawn(async move {
            match handshake::answer(socket, &*own, lanes).await {
                Ok((stream, hello)) => {
                    said.lock().forget(hello.node);
                    take(number, stream, hello);
                }
                Err(NoGuest::Silent(error)) => {
                    tracing::debug!(%address, %error, "somebody at {address} did not say who it is: {error}");
                }
                Err(NoGuest::Refused(node, why)) if why.code() == RefusalCode::Later => {
                    tracing::debug!(node, %address, "node {node} at {address} comes too early: {}", why.text);
                }
                Err(NoGuest::Refused(node, why)) => {
                    if said.lock().is_news(node, &why.text) {
                        tracing::warn!(node, %address, "node {node} at {address} is refused: {}", why.text);
                    } else {
                        tracing::debug!(node, %address, "node {node} at {address} is refused again: {}", why.text);
                    }
                }
            }
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_is_logged_once_for_each_node_and_text_until_the_node_is_accepted() {
        let mut said = LoggedRefusals::default();
        assert!(said.is_news(2, "its data are gone"));
        assert!(!said.is_news(2, "its data are gone"));
        // Two machines both claim to be node 2, and connect alternately.
        assert!(said.is_news(2, "another cluster"));
        assert!(!said.is_news(2, "its data are gone"));
        assert!(said.is_news(3, "its data are gone"));
        said.forget(2);
        assert!(said.is_news(2, "its data are gone"));
        assert!(!said.is_news(3, "its data are gone"));
    }

    #[test]
    fn number_of_remembered_refusals_is_bounded() {
        let mut said = LoggedRefusals::default();
        for node in 0..10_000 {
            assert!(said.is_news(node, "who is that"));
            assert!(said.texts.len() <= SAID_MAX);
        }
    }
}
