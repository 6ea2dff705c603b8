//! Connections that other nodes open.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_wire::peer::{Hello, Lane, RefusalCode};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::greet::{self, Greeter, NoLink};

/// So many strangers may be about to say who they are.
const GREETINGS_MAX: usize = 64;
/// The system gave no connection, for want of files or memory: it is asked again this much later.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers whoever connects, for as long as it is polled. `number` is asked when a connection was accepted; it comes back with
/// the connection once both sides have let each other in.
pub(super) async fn listen<N: Copy + Send + 'static>(
    listener: &TcpListener,
    own: Arc<dyn Greeter>,
    lanes: &'static [Lane],
    number: impl Fn() -> N,
    take: impl Fn(N, TcpStream, Hello) + Clone + Send + 'static,
) {
    let greetings = Arc::new(Semaphore::new(GREETINGS_MAX));
    loop {
        // Never closed.
        let Ok(permit) = greetings.clone().acquire_owned().await else { return };
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a peer's connection could not be accepted: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (own, take, number) = (own.clone(), take.clone(), number());
        tokio::spawn(async move {
            match greet::answer(socket, &*own, lanes).await {
                Ok((socket, hello)) => take(number, socket, hello),
                Err(NoLink::Unreachable(error)) => {
                    tracing::debug!(%address, %error, "somebody at {address} did not say who it is: {error}");
                }
                Err(NoLink::Unwanted(why) | NoLink::Refused(why)) if why.code() == RefusalCode::Later => {
                    tracing::debug!(%address, "a peer at {address} comes too early: {}", why.text);
                }
                Err(NoLink::Unwanted(why) | NoLink::Refused(why)) => {
                    tracing::warn!(%address, "a peer at {address} is refused: {}", why.text);
                }
            }
            drop(permit);
        });
    }
}
