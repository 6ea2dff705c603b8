//! Which node to try next, and how long to pause before. Pure: chance is handed in, and the simulator's clients choose by
//! the same code.

use std::fmt;
use std::time::Duration;

use crate::error::ConnectError;
use crate::url::{Host, Url};

/// The pause after the first round over all addresses that failed; each further round doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Most nodes that are learnt from one list: far more than a cluster has.
const LEARNT_MAX: usize = 32;

/// `host:port`; an IPv6 address in brackets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Address(String);

impl Address {
    fn of(host: &Host) -> Self {
        let port = host.port.unwrap_or(lockkeeper_wire::DEFAULT_PORT);
        match host.name.contains(':') {
            true => Self(format!("[{}]:{port}", host.name)),
            false => Self(format!("{}:{port}", host.name)),
        }
    }

    /// What a node says: an address of another one.
    fn told(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        (!host.is_empty() && port.parse::<u16>().is_ok()).then(|| Self(text.to_owned()))
    }

    pub(super) fn uri(&self) -> String {
        format!("http://{}", self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The addresses of a URL, and behind them those that the cluster itself tells, in turn. So one address is enough to
/// find a cluster, and once it was found, that node may go.
#[derive(Clone, Debug)]
pub struct Addresses {
    all: Vec<Address>,
    /// So many of them, the first, are the URL's: these stay, whatever is told.
    of_url: usize,
    next: usize,
    /// Goes first, once.
    hint: Option<Address>,
    /// The latest term whose leader was named.
    term: u64,
    /// The one that was taken last.
    last: Option<Address>,
    /// Since anything went well.
    failures: u32,
}

impl Addresses {
    /// `random` decides where to begin, so that many clients don't all begin at the same node.
    pub(super) fn of(url: &Url, random: u64) -> Result<Self, ConnectError> {
        url.only_parameters(&[])?;
        if url.hosts.is_empty() {
            return Err(url
                .bad_part("", "a list of nodes, as in `lockkeeper://10.0.0.1:5625,10.0.0.2`")
                .into());
        }
        if !matches!(url.path.as_str(), "" | "/") {
            return Err(url.bad_part(url.path.clone(), "part of this address: only nodes are named").into());
        }
        Ok(Self::listed(url.hosts.iter().map(Address::of), random))
    }

    /// Those of a list that has at least one, each once.
    fn listed(addresses: impl IntoIterator<Item = Address>, random: u64) -> Self {
        let mut all: Vec<Address> = Vec::new();
        for address in addresses {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        let next = (random % all.len().max(1) as u64) as usize;
        let of_url = all.len();
        Self { all, of_url, next, hint: None, term: 0, last: None, failures: 0 }
    }

    /// `lockkeeper://` with these hosts, for the simulator, whose nodes have names and no ports.
    ///
    /// # Panics
    /// If there are none.
    #[cfg(feature = "simulation")]
    #[must_use]
    pub fn named<'a>(hosts: impl IntoIterator<Item = &'a str>, random: u64) -> Self {
        let addresses = Self::listed(hosts.into_iter().map(|host| Address(host.to_owned())), random);
        assert!(!addresses.all.is_empty(), "a URL names at least one node");
        addresses
    }

    /// How many there are; at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The next one to try. Never twice the same in a row, if there are others and no node has named it: where a
    /// connection has just ended, a node has most likely just died.
    pub fn take(&mut self) -> Address {
        let address = self.hint.take().unwrap_or_else(|| {
            if self.all.len() > 1 && self.last.as_ref() == Some(&self.all[self.next]) {
                self.next = (self.next + 1) % self.all.len();
            }
            let address = self.all[self.next].clone();
            self.next = (self.next + 1) % self.all.len();
            address
        });
        self.last = Some(address.clone());
        address
    }

    /// The last one answered as it should: the next failure is a first one.
    pub fn worked(&mut self) {
        self.failures = 0;
    }

    /// The last one did not answer, or ended what it had begun.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// A leader tells where all nodes of the cluster serve clients. Those that it names no more are forgotten, but for
    /// the URL's, which may be other names for the same nodes.
    pub fn learn<'a>(&mut self, nodes: impl IntoIterator<Item = &'a str>) {
        let next = self.all[self.next].clone();
        self.all.truncate(self.of_url);
        for node in nodes.into_iter().take(LEARNT_MAX).filter_map(Address::told) {
            if !self.all.contains(&node) {
                self.all.push(node);
            }
        }
        self.next = self.all.iter().position(|address| *address == next).unwrap_or(0);
    }

    /// A node says where the leader of this term is (0: it does not say which term). A leader of a new term is worth a
    /// try at once, however often others have failed. Nodes that send us round in a circle are followed only now and then;
    /// never would be wrong: a leader that could not be reached for a while may lead on in the same term, and be none of
    /// those that we know (P7).
    pub fn leader_is(&mut self, leader: Option<&str>, term: u64) {
        let leader = leader.and_then(Address::told);
        if leader.is_some() && term > self.term {
            self.term = term;
            self.failures = 0;
        }
        let (failures, known) = (self.failures as usize, self.all.len());
        // So often that each of those that we know comes to be the one who is believed.
        let is_worth_a_try = failures < 2 * known || failures.is_multiple_of(2 * known + 1);
        self.hint = leader.filter(|_| is_worth_a_try);
    }

    /// Goes first, once: it has just answered.
    pub(super) fn begin_at(&mut self, address: Address) {
        self.hint = Some(address);
    }

    /// The same for somebody else's questions: whatever failed, did not fail them.
    pub(super) fn anew(&self) -> Self {
        Self { failures: 0, ..self.clone() }
    }

    /// How long to wait before the next try: not at all in the first round after something went well; then a random
    /// part of a time that doubles with each round, up to `most`.
    #[must_use]
    pub fn pause(&self, most: Duration, random: u64) -> Duration {
        let rounds = self.failures / u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let Some(doublings) = rounds.checked_sub(1) else { return Duration::ZERO };
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
    fn each_in_turn_from_a_random_one_and_a_leader_first() {
        let mut nodes = addresses("lockkeeper://a,b:7,[::1]", 1);
        let mut taken = || nodes.take().to_string();
        assert_eq!([taken(), taken(), taken(), taken()], ["b:7", "[::1]:5625", "a:5625", "b:7"]);
        nodes.leader_is(Some("c:5625"), 0);
        assert_eq!(nodes.take().to_string(), "c:5625");
        assert_eq!(nodes.take().to_string(), "[::1]:5625");
        nodes.leader_is(Some("no address"), 0);
        assert_eq!(nodes.take().to_string(), "a:5625");
    }

    #[test]
    fn nodes_that_send_us_round_in_a_circle_are_not_followed_for_ever() {
        let mut nodes = addresses("lockkeeper://a,b", 0);
        for _ in 0..4 {
            nodes.failed();
        }
        nodes.leader_is(Some("z:1"), 0);
        assert_eq!(nodes.take().to_string(), "a:5625");
    }

    /// It was told of once, while it could not be reached; then it leads on, in the same term.
    #[test]
    fn a_leader_that_failed_is_tried_again_though_its_term_is_no_news() {
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
    fn one_address_finds_the_cluster_and_may_go_then() {
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
    fn what_is_learnt_does_not_change_whose_turn_it_is() {
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
    fn the_node_that_has_just_failed_is_not_the_next_unless_it_is_named() {
        let mut nodes = addresses("lockkeeper://a,b,c", 0);
        nodes.leader_is(Some("a:5625"), 1);
        assert_eq!(nodes.take().to_string(), "a:5625");
        assert_eq!(nodes.take().to_string(), "b:5625", "its turn, but it has just been");
        nodes.leader_is(Some("b:5625"), 2);
        assert_eq!(nodes.take().to_string(), "b:5625");
        nodes.begin_at(Address::told("b:5625").unwrap());
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
    fn what_is_no_list_of_nodes_is_refused_with_the_bad_part() {
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
