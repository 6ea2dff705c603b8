//! `etcd:` on real servers: its queue, other clients' keys beside ours, clusters that lose members, and
//! access.

mod access;
mod beside;
mod cluster;
mod contract;
mod queue;

use lockkeeper::Locks;
use lockkeeper_contract::{until, until_waiting};
use lockkeeper_rig::Etcd;

async fn client(etcd: &Etcd, query: &str) -> Locks {
    Locks::connect_as(&format!("{}{query}", etcd.url()), "ours").await.unwrap()
}
