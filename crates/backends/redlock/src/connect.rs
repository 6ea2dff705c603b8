//! Creation of a client: the URL, and the first contact with the servers.

use std::sync::{Arc, Mutex};

use lockkeeper_backend::leased::Wakes;
use lockkeeper_backend::{Backend, BackendError, BackendErrorKind, BootInstant, ConnectError, Url};
use lockkeeper_redis as redis;
use lockkeeper_redis::RedisStore;

use super::majority::{ask_all, majority_of, too_few};
use super::server::{QuorumServer, QuorumSettings, Unusable};
use super::store::{QuorumNode, RedlockStore};
use super::{CAPABILITIES, Redlock};

/// With fewer servers, none may fail.
const SERVERS_MIN: usize = 3;

/// Creates a client, if a majority of the servers can be used.
pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let redis = settings(url)?;
    let (lease_thread, client) = (redis::lease_thread()?, RedisStore::new_client()?);
    let settings =
        QuorumSettings { redis, client, lease_thread: lease_thread.clone(), run_ids: Mutex::default() };
    let settings = Arc::new(settings);
    let servers: Vec<_> = url.hosts.iter().map(|host| QuorumServer::new(host, &settings)).collect();
    first_contact(&servers).await?;
    for server in servers.iter().filter(|server| !server.is_open()) {
        lease_thread.run(Box::pin(QuorumServer::keep_trying(Arc::downgrade(server))));
    }
    let node = |server: &Arc<QuorumServer>| {
        QuorumNode::new(server.name.clone(), server.clone(), server.wakes.clone())
    };
    let (nodes, wakes) = (servers.iter().map(node).collect(), Wakes::default());
    let store = RedlockStore::new(nodes, lease_thread.clone(), wakes.clone(), BootInstant::now);
    Ok(Arc::new(Redlock { servers, store: Arc::new(store), wakes, lease_thread }))
}

/// Checks the list of hosts, and parses the other settings of the URL.
fn settings(url: &Url) -> Result<redis::Settings, ConnectError> {
    if url.parameter::<String>("fencing", "left out")?.is_some() {
        return Err(CAPABILITIES.lacks_tokens("draw tokens (`?fencing=`)").into());
    }
    url.only_parameters(&["prefix", "tls-ca", "tls-cert", "tls-key"])?;
    let shown: Vec<String> = url.hosts.iter().map(|host| host.address(redis::PORT)).collect();
    if shown.len() < SERVERS_MIN {
        let wanted = "a list of 3 or more independent servers, better an odd number: with fewer none may fail; use \
                      `redis://` for one server";
        return Err(url.bad_part(shown.join(","), wanted).into());
    }
    if let Some((_, twice)) = shown.iter().enumerate().find(|&(at, name)| shown[..at].contains(name)) {
        return Err(url.bad_part(twice.clone(), "named once: a server must not vote twice").into());
    }
    redis::Settings::of(url, url.scheme == "redlocks")
}

/// Connects to all servers at once. Fails if fewer than a majority can be used, or if one is not independent.
async fn first_contact(servers: &[Arc<QuorumServer>]) -> Result<(), ConnectError> {
    let mut kinds = Vec::new();
    for (_, result) in ask_all(servers.iter().map(|server| server.connect()).collect()).await {
        match result {
            Ok(()) => {}
            Err(Unusable::Failed(error)) => kinds.push(error.kind),
            Err(Unusable::NotIndependent(why)) => {
                return Err(BackendError::new(BackendErrorKind::Refused, why).into());
            }
        }
    }
    let up = servers.iter().filter(|server| server.usable().is_ok()).count();
    let majority = majority_of(servers.len());
    if up < majority {
        let answer =
            |server: &Arc<QuorumServer>| server.usable().map_or_else(|why| why, |_| "answers".to_owned());
        let each = servers.iter().map(|server| (server.name.as_str(), answer(server)));
        let what = format!("{up} of {} servers can be used, {majority} must", servers.len());
        return Err(too_few(&what, each, kinds).into());
    }
    for server in servers {
        if let Err(why) = server.usable() {
            tracing::warn!(server = server.name, why, "can't be used; the others are a majority");
        }
    }
    Ok(())
}
