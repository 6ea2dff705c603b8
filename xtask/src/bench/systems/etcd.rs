//! etcd: one lease for each client, with the transaction and keys of Go's `concurrency.Mutex`, built from the
//! crate's basic calls.
//!
//! The crate's own lock call would let the server open a session for each call. Clients that share a
//! connection have separate leases: two requests for one lock under one lease would have the same key.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, KeyValue, KvClient, PutOptions, SortOrder, SortTarget,
    Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use tokio::task::JoinSet;

use super::{CONNECTIONS, KEEPALIVE_TTL, Peer, Setup, TTL, failed, many, renewals, watch_cpu};
use crate::TaskResult;
use crate::bench::server::ServerProcesses;

pub(crate) struct Etcd {
    connections: Vec<Client>,
    /// The lease of each client.
    leases: Vec<i64>,
}

pub(crate) struct EtcdHold {
    client: usize,
    key: String,
}

impl Peer for Etcd {
    type Held = EtcdHold;

    async fn connect(setup: Setup<'_>) -> TaskResult<Self> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS.min(setup.clients) {
            let nodes: Vec<&str> = setup.at.split(',').collect();
            connections.push(Client::connect(nodes, None).await.map_err(failed("etcd", "connect"))?);
        }
        let leases = grant_leases(&connections, setup.clients, setup.ttl).await?;
        Ok(Self { connections, leases })
    }

    async fn acquire(&self, client: usize, name: &str) -> TaskResult<EtcdHold> {
        let lease = self.leases[client];
        let connection = self.connection(client);
        let key = acquire(connection, lease, name).await.map_err(failed("etcd", "acquire"))?;
        Ok(EtcdHold { client, key })
    }

    async fn release(&self, held: EtcdHold) -> TaskResult {
        let answer = self.connection(held.client).kv_client().delete(held.key, None).await;
        answer.map(|_| ()).map_err(failed("etcd", "release"))
    }

    async fn close(self) -> TaskResult {
        revoke_leases(&self.connections, &self.leases).await
    }
}

impl Etcd {
    fn connection(&self, client: usize) -> &Client {
        &self.connections[client % self.connections.len()]
    }

    /// Renews `sessions` leases, each on its own stream, as the crate does.
    pub(crate) async fn keep_alive(
        at: &str,
        server: &ServerProcesses,
        sessions: usize,
        duration: Duration,
    ) -> TaskResult<f64> {
        let peer = Self::connect(Setup { at, clients: CONNECTIONS, contended: false, ttl: TTL }).await?;
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
            kept = watch_cpu(server, duration) => kept?,
            Some(ended) = renewing.join_next() => return Err(ended.unwrap_or_else(|error| error.to_string())),
        };
        renewing.shutdown().await;
        revoke_leases(&peer.connections, &leases).await?;
        peer.close().await?;
        Ok(kept)
    }
}

/// Creates the key of `lease` below `name`, and waits until no older key exists there. Returns the key.
async fn acquire(connection: &Client, lease: i64, name: &str) -> Result<String, etcd_client::Error> {
    let folder = format!("{name}/");
    let key = format!("{folder}{lease:x}");
    let mut kv = connection.kv_client();
    let put = TxnOp::put(key.as_str(), "", Some(PutOptions::new().with_lease(lease)));
    let owner = TxnOp::get(folder.as_str(), Some(by_creation(SortOrder::Ascend)));
    let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
    let again = TxnOp::get(key.as_str(), None);
    let create = Txn::new().when([absent]).and_then([put, owner.clone()]).or_else([again, owner]);
    let answer = kv.txn(create).await?;

    let found: Vec<Option<KeyValue>> = answer.op_responses().into_iter().map(first).collect();
    let created = match &found[..] {
        [Some(own), _] => own.create_revision(),
        _ => answer.header().map_or(0, etcd_client::ResponseHeader::revision),
    };
    // If there is no other key, ours is the oldest.
    let oldest = found.last().and_then(Option::as_ref).map_or(created, KeyValue::create_revision);
    if oldest != created {
        while let Some((before, seen)) = predecessor(&mut kv, &folder, created).await? {
            wait_for_deletion(connection, &before, seen).await?;
        }
        // After a wait, Go's client makes sure that its lease has not expired meanwhile.
        if kv.get(key.as_str(), None).await?.kvs().is_empty() {
            return Err(etcd_client::Error::LeaseKeepAliveError("the lease expired in the queue".into()));
        }
    }
    Ok(key)
}

/// Options to get only the oldest or only the newest key of a folder.
fn by_creation(order: SortOrder) -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, order).with_limit(1)
}

/// The newest key older than `created`, and the revision at which it was read.
async fn predecessor(
    kv: &mut KvClient,
    folder: &str,
    created: i64,
) -> Result<Option<(KeyValue, i64)>, etcd_client::Error> {
    let older = by_creation(SortOrder::Descend).with_max_create_revision(created - 1);
    let mut found = kv.get(folder, Some(older)).await?;
    let seen = found.header().map_or(0, etcd_client::ResponseHeader::revision);
    Ok(found.take_kvs().into_iter().next().map(|key| (key, seen)))
}

/// Waits until `key`, which existed at revision `seen`, is deleted.
async fn wait_for_deletion(connection: &Client, key: &KeyValue, seen: i64) -> Result<(), etcd_client::Error> {
    // The watch begins at the revision after `seen`, so that it includes a deletion since then. A watch from
    // an earlier revision, which Go's client uses, is slower: etcd serves watches that begin in the past from
    // a loop that runs ten times a second.
    let options = WatchOptions::new().with_start_revision(seen + 1);
    let mut changes = connection.watch_client().watch(key.key(), Some(options)).await?;
    while let Some(change) = changes.message().await? {
        if change.events().iter().any(|event| event.event_type() == EventType::Delete) {
            break;
        }
    }
    Ok(())
}

fn first(answer: TxnOpResponse) -> Option<KeyValue> {
    match answer {
        TxnOpResponse::Get(mut found) => found.take_kvs().into_iter().next(),
        _ => None,
    }
}

async fn grant_leases(connections: &[Client], count: usize, ttl: Duration) -> TaskResult<Vec<i64>> {
    let seconds = ttl.as_secs() as i64;
    many(count, |number| {
        let mut client = connections[number % connections.len()].lease_client();
        async move {
            let answer = client.grant(seconds, None).await;
            answer.map(|answer| answer.id()).map_err(failed("etcd", "grant a lease"))
        }
    })
    .await
}

async fn revoke_leases(connections: &[Client], leases: &[i64]) -> TaskResult {
    let revoked = many(leases.len(), |number| {
        let mut client = connections[number % connections.len()].lease_client();
        let lease = leases[number];
        async move { client.revoke(lease).await.map(|_| ()).map_err(failed("etcd", "revoke a lease")) }
    });
    revoked.await.map(|_| ())
}
