//! Which node to try next, and how long to pause before. Pure: chance is handed in.

use std::fmt;
use std::time::Duration;

use crate::error::ConnectError;
use crate::url::{Host, Url};

/// The pause after the first round over all addresses that failed; each further round doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// `host:port`; an IPv6 address in brackets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Address(String);

impl Address {
    fn of(host: &Host) -> Self {
        let port = host.port.unwrap_or(lockkeeper_wire::DEFAULT_PORT);
        match host.name.contains(':') {
            true => Self(format!("[{}]:{port}", host.name)),
            false => Self(format!("{}:{port}", host.name)),
        }
    }

    /// Where a node says that the leader is.
    pub(super) fn told(text: &str) -> Self {
        Self(text.to_owned())
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

/// The addresses of a URL, in turn.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    all: Vec<Address>,
    next: usize,
    /// Goes first, once.
    hint: Option<Address>,
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
        let mut all: Vec<Address> = Vec::with_capacity(url.hosts.len());
        for host in &url.hosts {
            let address = Address::of(host);
            if !all.contains(&address) {
                all.push(address);
            }
        }
        let next = (random % all.len() as u64) as usize;
        Ok(Self { all, next, hint: None, failures: 0 })
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The next one to try.
    pub(super) fn take(&mut self) -> Address {
        self.hint.take().unwrap_or_else(|| {
            let address = self.all[self.next].clone();
            self.next = (self.next + 1) % self.all.len();
            address
        })
    }

    /// The last one answered as it should: the next failure is a first one.
    pub(super) fn worked(&mut self) {
        self.failures = 0;
    }

    /// The last one did not answer, or ended what it had begun.
    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// A node says where the leader is. Nodes that send us round in a circle are not followed for ever.
    pub(super) fn leader_is(&mut self, leader: Option<&str>) {
        let rounds = self.failures as usize / self.all.len();
        self.hint = leader.filter(|leader| rounds < 2 && is_address(leader)).map(Address::told);
    }

    /// How long to wait before the next try: not at all in the first round after something went well; then a random
    /// part of a time that doubles with each round, up to `most`.
    pub(super) fn pause(&self, most: Duration, random: u64) -> Duration {
        let rounds = self.failures / u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let Some(doublings) = rounds.checked_sub(1) else { return Duration::ZERO };
        let whole = PAUSE_MIN.saturating_mul(1 << doublings.min(20)).min(most);
        whole / 2 + whole.mul_f64((random % 1024) as f64 / 2048.0)
    }
}

fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
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
        nodes.leader_is(Some("c:5625"));
        assert_eq!(nodes.take().to_string(), "c:5625");
        assert_eq!(nodes.take().to_string(), "[::1]:5625");
        nodes.leader_is(Some("no address"));
        assert_eq!(nodes.take().to_string(), "a:5625");
    }

    #[test]
    fn nodes_that_send_us_round_in_a_circle_are_not_followed_for_ever() {
        let mut nodes = addresses("lockkeeper://a,b", 0);
        for _ in 0..4 {
            nodes.failed();
        }
        nodes.leader_is(Some("z:1"));
        assert_eq!(nodes.take().to_string(), "a:5625");
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
