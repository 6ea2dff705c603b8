//! etcd: a lease a client, and the lock call of its API, which lays keys out as `concurrency.Mutex` does.
//!
//! A lease a client and not a connection: two requests for one lock under one lease would be the same key.

use std::time::Duration;

use etcd_client::{Client, LockOptions};
use tokio::task::JoinSet;

use super::{CONNECTIONS, KEEPALIVE_TTL, KeptAlive, Peer, Setup, TTL, failed, renewals, watch_cpu};
use crate::Outcome;
use crate::bench::server::Server;

pub(crate) struct Etcd {
    connections: Vec<Client>,
    /// By client.
    leases: Vec<i64>,
}

pub(crate) struct Held {
    client: usize,
    key: Vec<u8>,
}

impl Peer for Etcd {
    type Held = Held;

    async fn connect(setup: Setup<'_>) -> Outcome<Self> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS.min(setup.clients) {
            connections.push(Client::connect([setup.at], None).await.map_err(failed("etcd", "connect"))?);
        }
        let leases = grant_leases(&connections, setup.clients, TTL).await?;
        Ok(Self { connections, leases })
    }

    async fn acquire(&self, client: usize, name: &str) -> Outcome<Held> {
        let options = LockOptions::new().with_lease(self.leases[client]);
        let answer = self.connection(client).lock_client().lock(name, Some(options)).await;
        let answer = answer.map_err(failed("etcd", "acquire"))?;
        Ok(Held { client, key: answer.key().to_vec() })
    }

    async fn release(&self, held: Held) -> Outcome {
        let answer = self.connection(held.client).lock_client().unlock(held.key).await;
        answer.map(|_| ()).map_err(failed("etcd", "release"))
    }

    async fn close(self) -> Outcome {
        revoke_leases(&self.connections, &self.leases).await
    }
}

impl Etcd {
    fn connection(&self, client: usize) -> &Client {
        &self.connections[client % self.connections.len()]
    }

    /// `sessions` leases, each renewed on a stream of its own, as the crate has it.
    pub(crate) async fn keep_alive(
        at: &str,
        server: Server,
        sessions: usize,
        duration: Duration,
    ) -> Outcome<KeptAlive> {
        let peer = Self::connect(Setup { at, clients: CONNECTIONS, contended: false }).await?;
        let leases = grant_leases(&peer.connections, sessions, KEEPALIVE_TTL).await?;
        let mut renewing = JoinSet::new();
        for (number, lease) in leases.iter().enumerate() {
            let mut client = peer.connection(number).lease_client();
            let lease = *lease;
            let mut due = renewals(number, sessions);
            renewing.spawn(async move {
                let renewal = async {
                    due.tick().await;
                    let (mut keeper, mut answers) = client.keep_alive(lease).await?;
                    loop {
                        due.tick().await;
                        keeper.keep_alive().await?;
                        if answers.message().await?.is_none_or(|answer| answer.ttl() <= 0) {
                            return Ok::<_, etcd_client::Error>(());
                        }
                    }
                };
                match renewal.await {
                    Ok(()) => format!("etcd let the lease {lease} expire"),
                    Err(error) => failed("etcd", "renew a lease")(error),
                }
            });
        }
        let kept = tokio::select! {
            kept = watch_cpu(server, sessions, duration) => kept?,
            Some(ended) = renewing.join_next() => return Err(ended.unwrap_or_else(|error| error.to_string())),
        };
        renewing.shutdown().await;
        revoke_leases(&peer.connections, &leases).await?;
        peer.close().await?;
        Ok(kept)
    }
}

/// Grants `count` leases, many at a time: one after the other, each waits for a sync of its own.
async fn grant_leases(connections: &[Client], count: usize, ttl: Duration) -> Outcome<Vec<i64>> {
    let mut granting = JoinSet::new();
    for number in 0..count {
        let mut client = connections[number % connections.len()].lease_client();
        let seconds = ttl.as_secs() as i64;
        granting.spawn(async move { client.grant(seconds, None).await.map(|answer| answer.id()) });
    }
    let mut leases = Vec::with_capacity(count);
    while let Some(granted) = granting.join_next().await {
        let granted = granted.map_err(|error| error.to_string())?;
        leases.push(granted.map_err(failed("etcd", "grant a lease"))?);
    }
    Ok(leases)
}

async fn revoke_leases(connections: &[Client], leases: &[i64]) -> Outcome {
    let mut revoking = JoinSet::new();
    for (number, lease) in leases.iter().enumerate() {
        let mut client = connections[number % connections.len()].lease_client();
        let lease = *lease;
        revoking.spawn(async move { client.revoke(lease).await.map(|_| ()) });
    }
    while let Some(revoked) = revoking.join_next().await {
        revoked.map_err(|error| error.to_string())?.map_err(failed("etcd", "revoke a lease"))?;
    }
    Ok(())
}
