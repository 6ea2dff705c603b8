//! The servers of a URL: a single one for all names, or the nodes of a cluster.

use std::sync::Arc;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{Store, Wakes};
use lockkeeper_backend::{BackendError, ConnectError};
use lockkeeper_core::LockName;

use super::cluster::Cluster;
use super::inspect::NameState;
use super::settings::{Settings, Topology};
use super::store::{RedisStore, Role};
use super::target::Target;

pub(super) enum Servers {
    One(Arc<RedisStore>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    pub(super) async fn open(
        settings: &Settings,
        topology: Topology,
        lease_thread: &LeaseThread,
        wakes: Wakes,
    ) -> Result<Self, ConnectError> {
        Ok(match topology {
            Topology::Cluster(seeds) => {
                Self::Cluster(Cluster::open(settings, &seeds, lease_thread, wakes).await?)
            }
            one => {
                let (target, client) = (Target::new(settings.clone(), one), RedisStore::new_client()?);
                Self::One(RedisStore::open(Role::Alone, target, lease_thread, wakes, &client).await?)
            }
        })
    }

    /// The store for sessions.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::One(store) => store.clone(),
            Self::Cluster(cluster) => cluster.clone(),
        }
    }

    /// The server of a name.
    pub(super) fn of(&self, name: &LockName) -> Result<Arc<RedisStore>, BackendError> {
        match self {
            Self::One(store) => Ok(store.clone()),
            Self::Cluster(cluster) => cluster.node_of(name),
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<RedisStore>> {
        match self {
            Self::One(store) => vec![store.clone()],
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// The names in use on all servers, in order.
    pub(super) async fn list(
        &self,
        below: Option<&LockName>,
    ) -> Result<Vec<(LockName, NameState)>, BackendError> {
        let all = match self {
            Self::One(store) => vec![store.clone()],
            Self::Cluster(cluster) => cluster.all_nodes()?,
        };
        let mut list = Vec::new();
        for store in all {
            list.extend(store.list(below).await?);
        }
        list.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(list)
    }
}
