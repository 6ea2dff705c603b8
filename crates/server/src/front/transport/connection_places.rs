//! Limits on the connections that a node keeps open.
//!
//! Responsible for: no client and no network can take all connections, and operators and other nodes get a
//! connection even while clients use all of theirs. A connection counts for its whole life: towards its
//! network's limit from the accept on, and towards its client's limit once the client is identified. A
//! connection over its network's limit *waits* for a moment instead of being refused, since its first call
//! may be an operator's.

use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use crate::access::Identity;
use crate::front::callers::Caller;
use crate::options::ConnectionLimits;
use lockkeeper_places::{NoPlace, Places, TakenPlace, network};

/// Maximum number of connections with TLS whose client has not authenticated; a handshake costs about a
/// millisecond.
pub(super) const UNAUTHENTICATED_MAX: usize = 1_024;

/// Counts the connections of both ports against their limits.
pub(super) struct ConnectionPlaces {
    all: Pool,
    /// The connections on the HTTP port, which also count in `all`.
    http: Pool,
    waiting: Arc<Places<IpAddr>>,
    reserved: Arc<Places<Identity>>,
    /// On ports with TLS: the connections whose client has not authenticated. Each also counts in another
    /// field.
    unauthenticated: Arc<Places<IpAddr>>,
}

struct Pool {
    networks: Arc<Places<IpAddr>>,
    identities: Arc<Places<Identity>>,
}

/// The limits that one connection counts towards, until this value is dropped.
#[derive(Default)]
pub(super) struct ConnectionPlace {
    network: Option<IpAddr>,
    is_http: bool,
    networks: Vec<TakenPlace<IpAddr>>,
    identities: Vec<TakenPlace<Identity>>,
    waiting: Option<TakenPlace<IpAddr>>,
    reserved: Option<TakenPlace<Identity>>,
    unauthenticated: Option<TakenPlace<IpAddr>>,
    /// Whether the client of the connection is identified.
    is_admitted: bool,
    /// The caller that the connection is counted for; `None` for a node.
    caller: Option<Caller>,
}

/// The kind of client; decides whether a reserved connection may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    Client,
    /// A client with the permission `admin` or `break`.
    Operator,
    /// Another node of the cluster.
    Node,
}

impl Pool {
    fn new(most: usize, of_client: usize) -> Self {
        Self {
            networks: Places::with_share(most, of_client),
            identities: Places::with_share(most, of_client),
        }
    }
}

impl ConnectionPlaces {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        let ConnectionLimits { most, of_client, reserved, .. } = limits;
        let for_http = most.div_ceil(2);
        let waiting = reserved / 2;
        Self {
            all: Pool::new(most - reserved, of_client),
            http: Pool::new(for_http, of_client.min(for_http.div_ceil(2))),
            waiting: Places::new(waiting),
            reserved: Places::new(reserved - waiting),
            unauthenticated: Places::new(UNAUTHENTICATED_MAX.min(most)),
        }
    }

    /// Counts a new connection from this address.
    ///
    /// # Errors
    /// The connection must be closed at once; returns the reason.
    pub(super) fn accept(
        &self,
        address: Option<IpAddr>,
        is_http: bool,
        has_tls: bool,
    ) -> Result<ConnectionPlace, String> {
        let network = address.map(network);
        let mut place = ConnectionPlace { network, is_http, ..ConnectionPlace::default() };
        if has_tls {
            let taken = self.unauthenticated.take(network);
            place.unauthenticated = Some(taken.map_err(|none| match none {
                NoPlace::OfHolder(most) => {
                    format!("{most} connections of its network have not shown who they are, and no more may")
                }
                NoPlace::InAll(most) => {
                    format!("{most} connections have not shown who they are, and no more may")
                }
            })?);
        }
        if let Err(why) = self.take_networks(&mut place) {
            place.waiting = Some(self.waiting.take(network).map_err(|_| why)?);
        }
        Ok(place)
    }

    /// Counts the connection towards the limits of its first caller; `None`: of a node.
    ///
    /// # Errors
    /// The connection must be closed; returns the reason, in words for the caller.
    pub(super) fn admit(
        &self,
        place: &mut ConnectionPlace,
        caller: Option<&Caller>,
        standing: Standing,
    ) -> Result<(), String> {
        // Anonymous callers and nodes count by their network only.
        let identity =
            caller.map(|caller| &caller.identity).filter(|identity| **identity != Identity::ANONYMOUS);
        if let Err(why) = self.take_ordinary(place, identity) {
            if standing == Standing::Client {
                return Err(why);
            }
            let taken = self.reserved.take(identity.cloned());
            place.reserved =
                Some(taken.map_err(|_| format!("{why}; and of those kept for operators none is free"))?);
            place.networks.clear();
        }
        place.waiting = None;
        place.unauthenticated = None;
        place.caller = caller.cloned();
        place.is_admitted = true;
        Ok(())
    }

    /// Counts the connection towards the limits that apply to all clients.
    fn take_ordinary(&self, place: &mut ConnectionPlace, identity: Option<&Identity>) -> Result<(), String> {
        if place.networks.is_empty() {
            self.take_networks(place)?;
        }
        let Some(identity) = identity else { return Ok(()) };
        let pools = self.pools(place.is_http).map(|(pool, what)| (&pool.identities, what));
        place.identities = take_of_each(pools, Some(identity), &identity.to_string(), "client")?;
        Ok(())
    }

    fn take_networks(&self, place: &mut ConnectionPlace) -> Result<(), String> {
        let who = place.network.map_or_else(String::new, |network| network.to_string());
        let pools = self.pools(place.is_http).map(|(pool, what)| (&pool.networks, what));
        place.networks = take_of_each(pools, place.network.as_ref(), &who, "network")?;
        Ok(())
    }

    /// The pools in which a connection is counted, each with the name of its resource for error texts.
    fn pools(&self, is_http: bool) -> impl Iterator<Item = (&Pool, &'static str)> {
        let http = is_http.then_some((&self.http, "connections for HTTP"));
        [(&self.all, "connections")].into_iter().chain(http)
    }
}

fn take_of_each<'places, K: Eq + Hash + Clone + 'places>(
    pools: impl Iterator<Item = (&'places Arc<Places<K>>, &'static str)>,
    holder: Option<&K>,
    who: &str,
    kind: &str,
) -> Result<Vec<TakenPlace<K>>, String> {
    let take = |(places, what): (&'places Arc<Places<K>>, _)| {
        places.take(holder.cloned()).map_err(|none| match none {
            NoPlace::OfHolder(most) => format!(
                "{who} has {most} {what} at this node, the most that one {kind} may have \
                 (`--max-connections-per-client`); close some"
            ),
            NoPlace::InAll(most) => format!(
                "this node has {most} {what} of clients, the most that it allows (`--max-connections`); try another node"
            ),
        })
    };
    pools.map(take).collect()
}

impl ConnectionPlace {
    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// The caller that the connection is counted for; `None` for a node.
    pub(super) fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    pub(super) fn network(&self) -> Option<IpAddr> {
        self.network
    }

    /// Whether its network was at its limit when it was accepted.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the connection is closed unless its client authenticates soon.
    pub(super) fn is_provisional(&self) -> bool {
        self.unauthenticated.is_some() || self.waiting.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: ConnectionLimits =
        ConnectionLimits { most: 20, of_client: 6, reserved: 8, idle_timeout: Duration::from_secs(60) };

    fn caller(name: &str) -> Caller {
        let identity = if name.is_empty() { Identity::ANONYMOUS } else { Identity::new(name).unwrap() };
        Caller { identity, token: None, address: "".into(), is_checked: false }
    }

    fn accept(places: &ConnectionPlaces, host: u8, is_http: bool) -> Result<ConnectionPlace, String> {
        places.accept(Some([192, 0, 2, host].into()), is_http, false)
    }

    /// As many connections as one caller gets from hosts of its own.
    fn admitted(
        places: &ConnectionPlaces,
        name: &str,
        is_http: bool,
        standing: Standing,
    ) -> Vec<ConnectionPlace> {
        let connect = |host| {
            let mut place = accept(places, host, is_http).ok()?;
            places.admit(&mut place, Some(&caller(name)), standing).ok()?;
            Some(place)
        };
        (0..100).map_while(connect).collect()
    }

    #[test]
    fn one_identity_gets_its_share_and_those_for_http_are_fewer() {
        let places = ConnectionPlaces::new(LIMITS);
        let shop = admitted(&places, "shop", false, Standing::Client);
        assert_eq!(shop.len(), LIMITS.of_client);
        let mut place = accept(&places, 1, false).unwrap();
        let refused = places.admit(&mut place, Some(&caller("shop")), Standing::Client).unwrap_err();
        assert!(refused.contains("shop has 6 connections at this node"), "{refused}");
        drop((shop, place));
        assert_eq!(admitted(&places, "shop", true, Standing::Client).len(), 5, "half of half of all");
        // Nothing is kept of what has ended.
        assert_eq!(admitted(&places, "shop", false, Standing::Client).len(), LIMITS.of_client);
    }

    #[test]
    fn network_gets_its_share_and_what_waits_becomes_a_clients_once_there_is_room() {
        let places = ConnectionPlaces::new(LIMITS);
        let mut of_network: Vec<_> = (0..6).map(|_| accept(&places, 1, false).unwrap()).collect();
        let mut waiting = accept(&places, 1, false).unwrap();
        assert!(waiting.is_waiting() && waiting.is_provisional());
        let refused = places.admit(&mut waiting, Some(&caller("")), Standing::Client).unwrap_err();
        assert!(refused.contains("192.0.2.1 has 6 connections at this node"), "{refused}");
        let _also_waiting = accept(&places, 1, false).unwrap();
        assert!(accept(&places, 1, false).is_err(), "half of those that wait");
        assert!(!accept(&places, 2, false).unwrap().is_waiting());
        of_network.pop();
        places.admit(&mut waiting, Some(&caller("")), Standing::Client).unwrap();
        assert!(!waiting.is_provisional());
    }

    #[test]
    fn operators_and_nodes_get_places_while_clients_have_all() {
        let places = ConnectionPlaces::new(LIMITS);
        let clients = ["shop", "stock"].map(|name| admitted(&places, name, false, Standing::Client));
        assert_eq!(clients.iter().map(Vec::len).sum::<usize>(), LIMITS.most - LIMITS.reserved);
        assert!(admitted(&places, "web", false, Standing::Client).is_empty());
        let _operators = admitted(&places, "ops", true, Standing::Operator);
        assert_eq!(_operators.len(), 2, "half of those that are kept for operators and nodes");
        let mut node = accept(&places, 1, false).unwrap();
        places.admit(&mut node, None, Standing::Node).unwrap();
        assert!(node.caller().is_none() && node.is_admitted());
    }

    #[test]
    fn few_connections_may_be_without_an_identity_for_long_with_tls() {
        let places = ConnectionPlaces::new(LIMITS);
        let strangers: Vec<_> = (0..20)
            .filter_map(|host| places.accept(Some([192, 0, 2, host].into()), false, true).ok())
            .collect();
        // 12 of them are clients', 4 wait.
        assert_eq!(strangers.len(), 16);
        assert!(strangers.iter().all(ConnectionPlace::is_provisional));
    }
}
