//! Selects the next node to try and the pause before it. Pure: randomness is an argument, and the simulator's
//! clients run the same code.

use std::fmt;
use std::time::Duration;

use lockkeeper_backend::{ConnectError, Host, TLS_PARAMETERS, Url};

use super::credentials::PARAMETERS;

/// The longest pause after the first failed round over all addresses; each further round doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest time limit for a connection, after several that were given up.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
/// Maximum number of addresses taken from one list that the service sends: far more nodes than a cluster has.
pub(super) const LEARNT_MAX: usize = 32;

/// `host:port`; an IPv6 address in brackets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Address(String);

impl Address {
    fn of(host: &Host) -> Self {
        Self(host.address(lockkeeper_wire::DEFAULT_PORT))
    }

    /// Parses an address sent by a node.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        (!host.is_empty() && port.parse::<u16>().is_ok()).then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An address to try next.
#[derive(Clone, Debug)]
struct Hint {
    address: Address,
    /// The node that has reported it as the leader's.
    reporter: Option<Address>,
}

/// The addresses of a URL, followed by those that the cluster reports, in round-robin order. One address is
/// thus enough to find a cluster, and its node may be removed later.
#[derive(Clone, Debug)]
pub struct Addresses {
    all: Vec<Address>,
    /// The number of addresses from the URL. They come first in `all` and are never forgotten.
    of_url: usize,
    next: usize,
    /// An address to try before the next one of `all`; used once.
    hint: Option<Hint>,
    /// The highest term for which a leader's address was received.
    term: u64,
    /// The address returned last.
    last: Option<Address>,
    /// Failures since the last success.
    failures: u32,
    /// The node that had reported `last` as the leader's address.
    reporter: Option<Address>,
    /// The reported address of a leader that could not be reached: nodes are asked to relay to it.
    unreached: Option<Address>,
}

impl Addresses {
    /// `random` selects the first node, so that many clients do not all start at the same one.
    pub(super) fn of(url: &Url, random: u64) -> Result<Self, ConnectError> {
        url.only_parameters(&[&TLS_PARAMETERS[..], &PARAMETERS].concat())?;
        if url.user.is_some() || url.password.is_some() {
            let wanted = "of use: this service has no passwords; give a certificate or `token-file=FILE`";
            return Err(url.bad_part("user:password@", wanted).into());
        }
        if url.hosts.is_empty() {
            return Err(url
                .bad_part(url.path.clone(), "a list of nodes, as in `lockkeeper://10.0.0.1:5625,10.0.0.2`")
                .into());
        }
        if !matches!(url.path.as_str(), "" | "/") {
            return Err(url.bad_part(url.path.clone(), "part of this address: only nodes are named").into());
        }
        Ok(Self::listed(url.hosts.iter().map(Address::of), random))
    }

    /// A list of at least one address, without duplicates.
    fn listed(addresses: impl IntoIterator<Item = Address>, random: u64) -> Self {
        let mut all: Vec<Address> = Vec::new();
        for address in addresses {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        let next = (random % all.len().max(1) as u64) as usize;
        let of_url = all.len();
        Self {
            all,
            of_url,
            next,
            hint: None,
            term: 0,
            last: None,
            failures: 0,
            reporter: None,
            unreached: None,
        }
    }

    /// `lockkeeper://` with these hosts, for the simulator, whose nodes have names and no ports.
    ///
    /// # Panics
    /// If the list is empty.
    #[cfg(feature = "simulation")]
    #[must_use]
    pub fn named<'a>(hosts: impl IntoIterator<Item = &'a str>, random: u64) -> Self {
        let addresses = Self::listed(hosts.into_iter().map(|host| Address(host.to_owned())), random);
        assert!(!addresses.all.is_empty(), "a URL names at least one node");
        addresses
    }

    /// The number of addresses; at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The addresses of the URL.
    pub(super) fn of_url(&self) -> Vec<Address> {
        self.all.iter().take(self.of_url).cloned().collect()
    }

    /// Returns the next address to try: the hint, or else the next in round-robin order. Without a hint, the
    /// address returned last is skipped if there is another one: if its connection has just ended, its node
    /// has probably died.
    pub fn take(&mut self) -> Address {
        let hint = self.hint.take().unwrap_or_else(|| {
            if self.all.len() > 1 && self.last.as_ref() == Some(&self.all[self.next]) {
                self.next = (self.next + 1) % self.all.len();
            }
            let address = self.all[self.next].clone();
            self.next = (self.next + 1) % self.all.len();
            Hint { address, reporter: None }
        });
        self.reporter = hint.reporter;
        self.last = Some(hint.address.clone());
        hint.address
    }

    /// Records that the last node answered: the next failure counts as the first. After a relayed stream, the
    /// leader's own address is tried again first, and the addresses of the URL before those of other nodes,
    /// which may be unreachable as well.
    pub fn worked(&mut self) {
        self.failures = 0;
        if self.unreached.take().is_some() {
            self.next %= self.of_url.max(1);
            if self.last.as_ref() == Some(&self.all[self.next]) {
                self.next = (self.next + 1) % self.of_url.max(1);
            }
            // The only address of the URL is tried again, although its stream has just ended.
            self.last = None;
        }
    }

    /// Records that the last address could not be reached. If a node has reported it as the leader's, that
    /// node and the following ones are asked to relay the stream, until one has worked.
    pub(super) fn unreached(&mut self) {
        if let Some(reporter) = self.reporter.take() {
            self.unreached.clone_from(&self.last);
            self.hint = Some(Hint { address: reporter, reporter: None });
            // Learnt addresses are most likely of the same unreachable network.
            if self.next >= self.of_url {
                self.next = 0;
            }
        }
    }

    /// The leader's address that this client can't reach, for a node that can. Not needed by a node at that
    /// address itself.
    pub(super) fn relay_to(&self) -> Option<&Address> {
        self.unreached.as_ref()
    }

    /// The time limit for a connection: `usual`, and twice as long after each round of failures over all
    /// addresses. If a crowd of clients connects at once, a node may need longer, and attempts that are given
    /// up make it longer still, for ever. Within the first round it is not longer: the rest of a lease is
    /// needed for the other nodes.
    pub(super) fn patience(&self, usual: Duration) -> Duration {
        (usual * (1 << self.rounds().min(6))).min(PATIENCE_MAX.max(usual))
    }

    /// The rounds of failures over all addresses since the last success.
    fn rounds(&self) -> u32 {
        self.failures / u32::try_from(self.all.len()).unwrap_or(u32::MAX)
    }

    /// Records that the last node did not answer, or ended its stream.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Stores the client addresses of all nodes, as reported by a leader. Nodes missing from the list are
    /// forgotten, except those of the URL, which may be other names of the same nodes.
    pub fn learn<'a>(&mut self, nodes: impl IntoIterator<Item = &'a str>) {
        let next = self.all[self.next].clone();
        self.all.truncate(self.of_url);
        for node in nodes.into_iter().take(LEARNT_MAX).filter_map(Address::parse) {
            if !self.all.contains(&node) {
                self.all.push(node);
            }
        }
        self.next = self.all.iter().position(|address| *address == next).unwrap_or(0);
    }

    /// Stores the address of a term's leader, as reported by a node (term 0: not given), as the next one to
    /// try. A leader of a new term is tried at once, regardless of earlier failures. Within a known term,
    /// after `2 * count` failures in a row, the reported address is used only at every `2 * count + 1`-th
    /// failure, because nodes may refer to each other in a circle. It is never ignored for good: a leader
    /// that was unreachable for a while may still lead in the same term without being one of the known
    /// addresses (P7).
    pub fn leader_is(&mut self, leader: Option<&str>, term: u64) {
        let leader = leader.and_then(Address::parse);
        if leader.is_some() && term > self.term {
            self.term = term;
            self.failures = 0;
        }
        let (failures, known) = (self.failures as usize, self.all.len());
        // With k known addresses, a round over them is k failures. The period 2k + 1 is 1 modulo k, so the
        // reported addresses that are used come from each of the known nodes in turn.
        let is_worth_a_try = failures < 2 * known || failures.is_multiple_of(2 * known + 1);
        let leader = leader.filter(|_| is_worth_a_try);
        self.hint = leader.map(|address| Hint { address, reporter: self.last.clone() });
    }

    /// Makes `address` the next one, once: it has just answered.
    pub(super) fn begin_at(&mut self, address: Address) {
        self.hint = Some(Hint { address, reporter: None });
    }

    /// A copy for unary calls, without the failures counted so far.
    pub(super) fn anew(&self) -> Self {
        Self { failures: 0, unreached: None, ..self.clone() }
    }

    /// The pause before the next attempt: zero in the first round after a success; later a random duration
    /// between half and all of a limit that doubles with each round, up to `most`.
    #[must_use]
    pub fn pause(&self, most: Duration, random: u64) -> Duration {
        let Some(doublings) = self.rounds().checked_sub(1) else { return Duration::ZERO };
        let whole = PAUSE_MIN.saturating_mul(1 << doublings.min(20)).min(most);
        whole / 2 + whole.mul_f64((random % 1024) as f64 / 2048.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(url: &str, random: u64) -> Addresses {
        Addresses::of(&url.parse().unwrap(), random).unwrap()
    }

    #[test]
    fn addresses_rotate_from_a_random_one_and_a_named_leader_goes_first() {
        let mut nodes = addresses("lockkeeper://a,b:7,[::1]", 1);
        let mut taken = || nodes.take().to_string();
        assert_eq!([taken(), taken(), taken(), taken()], ["b:7", "[::1]:5625", "a:5625", "b:7"]);
        nodes.leader_is(Some("c:5625"), 0);
        assert_eq!(nodes.take().to_string(), "c:5625");
        assert_eq!(nodes.take().to_string(), "[::1]:5625");
        nodes.leader_is(Some("no address"), 0);
        assert_eq!(nodes.take().to_string(), "a:5625");
    }

    /// Behind a port-forward: no address of a node can be reached, and the only one of the URL relays.
    #[test]
    fn ended_relay_is_asked_again_before_nodes_out_of_reach() {
        let mut nodes = addresses("lockkeeper://a", 0);
        assert_eq!(nodes.take().to_string(), "a:5625");
        nodes.learn(["n1:1", "n2:1"]);
        nodes.leader_is(Some("n1:1"), 1);
        assert_eq!(nodes.take().to_string(), "n1:1");
        nodes.unreached();
        assert_eq!(nodes.take().to_string(), "a:5625", "to relay");
        nodes.worked();
        nodes.failed();
        assert_eq!(nodes.take().to_string(), "a:5625", "the stream has ended");
        nodes.leader_is(Some("n1:1"), 2);
        assert_eq!(nodes.take().to_string(), "n1:1");
        nodes.unreached();
        assert_eq!(nodes.take().to_string(), "a:5625", "to relay again");
        assert_eq!(nodes.relay_to().map(ToString::to_string).as_deref(), Some("n1:1"));
    }

    #[test]
    fn patience_doubles_with_each_round_of_failures() {
        const USUAL: Duration = Duration::from_secs(2);
        let mut nodes = addresses("lockkeeper://a,b", 0);
        let after_failure = |nodes: &mut Addresses| {
            let patience = nodes.patience(USUAL).as_secs();
            nodes.failed();
            patience
        };
        let patience: Vec<u64> = (0..8).map(|_| after_failure(&mut nodes)).collect();
        assert_eq!(patience, [2, 2, 4, 4, 8, 8, 10, 10]);
        nodes.worked();
        assert_eq!((after_failure(&mut nodes), after_failure(&mut nodes)), (2, 2));
        nodes.leader_is(Some("c:1"), 7);
        assert_eq!(nodes.patience(USUAL), USUAL, "a new leader");
    }

    #[test]
    fn circular_leader_hints_are_not_followed_forever() {
        let mut nodes = addresses("lockkeeper://a,b", 0);
        for _ in 0..4 {
            nodes.failed();
        }
        nodes.leader_is(Some("z:1"), 0);
        assert_eq!(nodes.take().to_string(), "a:5625");
    }

    /// The unreachable leader is `z`. Every other node reports it, always in the same term.
    #[test]
    fn a_failed_leader_is_tried_again_in_its_known_term() {
        for url in ["lockkeeper://a", "lockkeeper://a,b", "lockkeeper://a,b,c"] {
            let mut nodes = addresses(url, 0);
            let mut tries = 0;
            for _ in 0..100 {
                let is_leader = nodes.take().to_string() == "z:1";
                tries += usize::from(is_leader);
                nodes.failed();
                if !is_leader {
                    nodes.leader_is(Some("z:1"), 5);
                }
            }
            assert!((10..60).contains(&tries), "{url}: {tries} of 100");
        }
    }

    fn round(nodes: &mut Addresses) -> Vec<String> {
        (0..nodes.count()).map(|_| nodes.take().to_string()).collect()
    }

    #[test]
    fn a_leader_of_a_new_term_is_tried_at_once_and_only_the_first_time() {
        let mut nodes = addresses("lockkeeper://a,b", 0);
        let most = Duration::from_secs(2);
        for _ in 0..9 {
            nodes.failed();
        }
        nodes.leader_is(Some("c:1"), 7);
        assert_eq!((nodes.take().to_string().as_str(), nodes.pause(most, 0)), ("c:1", Duration::ZERO));
        for _ in 0..9 {
            nodes.failed();
        }
        for term in [7, 6] {
            nodes.leader_is(Some("d:1"), term);
            assert!(!nodes.pause(most, 0).is_zero(), "no news");
            assert_ne!(nodes.take().to_string(), "d:1");
        }
        nodes.leader_is(None, 8);
        assert!(!nodes.pause(most, 0).is_zero(), "nobody leads");
        nodes.leader_is(Some("d:1"), 8);
        assert_eq!((nodes.take().to_string().as_str(), nodes.pause(most, 0)), ("d:1", Duration::ZERO));
    }

    #[test]
    fn one_address_finds_the_cluster_and_its_node_may_be_removed() {
        let mut nodes = addresses("lockkeeper://a", 0);
        assert_eq!(round(&mut nodes), ["a:5625"]);
        nodes.learn(["a:5625", "b:1", "nonsense", ":2", "c:3", "b:1"]);
        let mut learnt = round(&mut nodes);
        learnt.sort();
        assert_eq!(learnt, ["a:5625", "b:1", "c:3"]);
        nodes.learn(["d:4", "c:3"]);
        let mut learnt = round(&mut nodes);
        learnt.sort();
        assert_eq!(learnt, ["a:5625", "c:3", "d:4"], "who was removed is gone, the URL's stays");
    }

    #[test]
    fn learnt_addresses_do_not_change_the_next_address() {
        let mut nodes = addresses("lockkeeper://a,b", 0);
        nodes.learn(["c:3", "d:4"]);
        assert_eq!(round(&mut nodes)[..3], ["a:5625", "b:5625", "c:3"]);
        let mut nodes = addresses("lockkeeper://a,b", 0);
        nodes.learn(["c:3", "d:4"]);
        for _ in 0..3 {
            nodes.take();
        }
        nodes.learn(["e:5", "d:4"]);
        assert_eq!(nodes.take().to_string(), "d:4");
        nodes.learn([]);
        assert_eq!(nodes.take().to_string(), "a:5625");
    }

    #[test]
    fn the_node_that_has_just_failed_is_not_the_next_unless_named() {
        let mut nodes = addresses("lockkeeper://a,b,c", 0);
        nodes.leader_is(Some("a:5625"), 1);
        assert_eq!(nodes.take().to_string(), "a:5625");
        assert_eq!(nodes.take().to_string(), "b:5625", "its turn, but it has just been");
        nodes.leader_is(Some("b:5625"), 2);
        assert_eq!(nodes.take().to_string(), "b:5625");
        nodes.begin_at(Address::parse("b:5625").unwrap());
        assert_eq!(nodes.take().to_string(), "b:5625", "it has just answered");
        assert_ne!(nodes.take().to_string(), "b:5625", "once");
        let mut alone = addresses("lockkeeper://a", 0);
        assert_eq!([alone.take(), alone.take()].map(|address| address.to_string()), ["a:5625", "a:5625"]);
    }

    #[test]
    fn the_first_round_does_not_pause_and_later_ones_do_within_bounds() {
        let mut nodes = addresses("lockkeeper://a,b,c", 0);
        let most = Duration::from_secs(2);
        nodes.failed();
        nodes.failed();
        assert_eq!(nodes.pause(most, 1023), Duration::ZERO, "there is a third to try");
        nodes.failed();
        assert!((PAUSE_MIN / 2..=PAUSE_MIN).contains(&nodes.pause(most, 7)));
        for _ in 0..100 {
            nodes.failed();
        }
        assert!((most / 2..=most).contains(&nodes.pause(most, u64::MAX)));
        nodes.worked();
        assert_eq!(nodes.pause(most, 1), Duration::ZERO);
    }

    #[test]
    fn only_an_unreachable_leader_that_a_node_has_named_is_relayed_to_until_a_stream_works() {
        let mut nodes = addresses("lockkeeper://a,b", 0);
        nodes.take();
        nodes.unreached();
        assert_eq!(nodes.relay_to(), None, "of the URL");
        assert_eq!(nodes.take().as_str(), "b:5625");
        nodes.leader_is(Some("c:1"), 3);
        nodes.take();
        nodes.unreached();
        assert_eq!(nodes.take().as_str(), "b:5625", "who has named it can be reached");
        assert_eq!(nodes.relay_to().map(Address::as_str), Some("c:1"));
        nodes.unreached();
        assert_eq!(nodes.take().as_str(), "a:5625");
        assert_eq!(nodes.relay_to().map(Address::as_str), Some("c:1"), "not b");
        nodes.learn(["c:1", "d:1"]);
        nodes.next = 3;
        nodes.worked();
        assert_eq!(nodes.relay_to(), None);
        assert_eq!(nodes.take().as_str(), "b:5625", "of the URL, since d may be unreachable too");
    }

    #[test]
    fn an_invalid_list_of_nodes_is_refused_with_the_bad_part() {
        for (url, quoted) in [
            ("lockkeeper:", "a list of nodes"),
            ("lockkeeper://a/x", "`/x`"),
            ("lockkeeper://a?ttl=3", "`ttl`"),
        ] {
            let error = Addresses::of(&url.parse().unwrap(), 0).unwrap_err().to_string();
            assert!(error.contains(quoted), "{url}: {error}");
        }
    }
}
