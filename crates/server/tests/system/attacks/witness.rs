//! A client that acquires and releases a lock all the time.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_wire::v1::{self, client_item, server_item::What};
use tokio::time::Instant;

use super::attacked_node::AttackedNode;
use crate::harness::{Client, SECRET, acquire};

/// Less than its ttl.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(super) struct Witness {
    client: Client,
    session: u64,
    seq: u64,
    seen: Observations,
    kept_alive: Instant,
}

/// What the witness has noticed.
#[derive(Clone, Copy, Default)]
pub(super) struct Observations {
    /// Locks that it acquired and released.
    pub(super) pairs: u64,
    /// The slowest of these pairs.
    pub(super) slowest: Duration,
}

impl Witness {
    pub(super) async fn start(target: &AttackedNode) -> Self {
        Self::of(target.client().await).await
    }

    pub(super) async fn with_token(address: SocketAddr, token: &str) -> Self {
        Self::of(Client::connect_as(address, Some(token)).await).await
    }

    async fn of(mut client: Client) -> Self {
        let session = client.open(SECRET, "witness").await;
        Self { client, session, seq: 0, seen: Observations::default(), kept_alive: Instant::now() }
    }

    pub(super) fn forget_slowest(&mut self) {
        self.seen = Observations::default();
    }

    /// Acquires and releases so many times; each answer has a deadline.
    pub(super) async fn progress(&mut self, pairs: u64) -> Observations {
        for _ in 0..pairs {
            if self.kept_alive.elapsed() > KEEP_ALIVE {
                self.keep_alive().await;
            }
            let begun = Instant::now();
            let number = self.seq + 1;
            let request = v1::Acquire { done_through: self.seq, ..acquire(number, "witness", false) };
            self.seq += 2;
            self.client.send(self.session, client_item::What::Acquire(request));
            self.client.granted().await;
            self.client.finish(self.session, self.seq, number);
            assert!(matches!(self.client.what().await, What::Finished(_)));
            self.seen.pairs += 1;
            self.seen.slowest = self.seen.slowest.max(begun.elapsed());
        }
        self.seen
    }

    /// Its session was there all the time.
    pub(super) async fn end(mut self) {
        self.keep_alive().await;
    }

    async fn keep_alive(&mut self) {
        self.kept_alive = Instant::now();
        self.client.send(self.session, client_item::What::KeepAlive(v1::KeepAlive { id: 1 }));
        assert!(matches!(self.client.what().await, What::KeptAlive(_)));
    }
}
