//! A network for one test: hosts that each have an address, and links between them that can be cut in one
//! direction.
//!
//! Responsible for leaving nothing behind: the hosts are unnamed network namespaces, which vanish with the
//! last process in them and the last [`Network`]. Needs root, and `ip`.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::{process, thread};

use nix::sched::{CloneFlags, setns, unshare};

use crate::program::{Program, SETPRIV, ask};

/// Configures interfaces, routes and rules.
pub const IP: Program = Program { name: "ip", package: "iproute2" };

/// Drops some of the packets between hosts.
pub const NFT: Program = Program { name: "nft", package: "nftables" };

/// Slows links down.
pub const TC: Program = Program { name: "tc", package: "iproute2" };
const NSENTER: Program = Program { name: "nsenter", package: "util-linux" };

/// The first three bytes of all addresses.
const NET: [u8; 3] = [10, 77, 0];
/// The last byte of the router's address.
const MIDDLE: u8 = 254;

/// Hosts around a router, which forwards the packets between them.
pub struct Network {
    middle: File,
    hosts: Vec<File>,
}

impl Network {
    /// Makes a network with this many hosts. The calling thread moves into the router's namespace, and so
    /// does every thread and process that it starts later. They reach all hosts, regardless of cuts between
    /// hosts, and nothing else, not even other tests on 127.0.0.1.
    ///
    /// So a test must call this first, before it makes a runtime. If the test uses threads that all tests of
    /// a process share, it needs its own process: such threads stay in the namespace in which they were
    /// started.
    ///
    /// # Panics
    /// This process is not root, or `ip` is missing.
    #[must_use]
    pub fn around_this_thread(hosts: u8) -> Self {
        let middle = namespace();
        let hosts = (0..hosts).map(|_| thread::scope(|scope| join(scope.spawn(namespace)))).collect();
        let network = Self { middle, hosts };
        ip("link set lo up");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a namespace of one's own can be changed");
        for (number, host) in network.hosts.iter().enumerate() {
            let (own, middle) = (network.address(number), address(MIDDLE));
            let there = format!("/proc/{}/fd/{}", process::id(), host.as_raw_fd());
            ip(&format!("link add to{number} type veth peer name eth0 netns {there}"));
            ip(&format!("address add {middle}/32 peer {own} dev to{number}"));
            ip(&format!("link set to{number} up"));
            network.at(number, || {
                ip("link set lo up");
                ip(&format!("address add {own}/32 peer {middle} dev eth0"));
                ip("link set eth0 up");
                ip(&format!("route add default via {middle}"));
            });
        }
        network
    }

    /// The address of a host; hosts count from 0.
    #[must_use]
    pub fn address(&self, host: usize) -> Ipv4Addr {
        let number = u8::try_from(host + 1).ok().filter(|_| host < self.hosts.len());
        address(number.expect("there is such a host"))
    }

    /// Runs `does` in a host's namespace: processes that it starts and sockets that it opens belong to the
    /// host.
    pub fn at<T: Send>(&self, host: usize, does: impl FnOnce() -> T + Send) -> T {
        within(&self.hosts[host], does)
    }

    /// The command for a program on a host. The program is killed when the calling *thread* ends, in any way.
    #[must_use]
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new(NSENTER.path());
        command.arg(format!("--net=/proc/{}/fd/{}", process::id(), self.hosts[host].as_raw_fd()));
        command.arg("--").arg(SETPRIV.path()).args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    /// Drops this share of all packets between hosts from now on: at most 99 %.
    pub fn lose(&self, percent: u8) {
        let rule = format!(
            "add table inet loss; add chain inet loss pass {{ type filter hook forward priority 0; }}; add rule inet \
             loss pass numgen random mod 100 < {percent} counter drop"
        );
        within(&self.middle, || nft(&rule));
    }

    /// Ends [`Network::lose`]; returns the number of packets that were dropped.
    pub fn lose_no_more(&self) -> u64 {
        within(&self.middle, || {
            let rules = nft("list table inet loss");
            nft("delete table inet loss");
            number_after("packets ", &rules)
        })
    }

    /// From now on, packets from and to this host pass at this rate (as `1mbit`) only: they wait for each
    /// other, for up to 200 ms, and those for which no room is left are dropped.
    pub fn slow(&self, host: usize, rate: &str) {
        let add =
            |link: &str| tc(&format!("qdisc add dev {link} root tbf rate {rate} burst 4kb latency 200ms"));
        within(&self.middle, || add(&format!("to{host}")));
        self.at(host, || add("eth0"));
    }

    /// Ends [`Network::slow`]; returns how often a packet has waited.
    pub fn slow_no_more(&self, host: usize) -> u64 {
        let end = |link: &str| {
            let shown = tc(&format!("-s qdisc show dev {link}"));
            tc(&format!("qdisc delete dev {link} root"));
            number_after("overlimits ", &shown)
        };
        within(&self.middle, || end(&format!("to{host}"))) + self.at(host, || end("eth0"))
    }

    /// Drops all packets from one host to another from now on; neither host gets an error. The other
    /// direction stays open.
    pub fn cut(&self, from: usize, to: usize) {
        let (from, to) = (self.address(from), self.address(to));
        within(&self.middle, || ip(&format!("rule add from {from} to {to} blackhole")));
    }

    /// Ends a [`Network::cut`].
    pub fn mend(&self, from: usize, to: usize) {
        let (from, to) = (self.address(from), self.address(to));
        within(&self.middle, || ip(&format!("rule delete from {from} to {to} blackhole")));
    }

    /// Cuts all paths between two groups of hosts, in both directions.
    pub fn part(&self, one: &[usize], two: &[usize]) {
        between(one, two, |from, to| self.cut(from, to));
    }

    /// Ends a [`Network::part`].
    pub fn unite(&self, one: &[usize], two: &[usize]) {
        between(one, two, |from, to| self.mend(from, to));
    }
}

/// Calls `path` for each path between two groups of hosts.
fn between(one: &[usize], two: &[usize], path: impl Fn(usize, usize)) {
    for &one in one {
        for &two in two {
            path(one, two);
            path(two, one);
        }
    }
}

fn address(last: u8) -> Ipv4Addr {
    let [a, b, c] = NET;
    Ipv4Addr::new(a, b, c, last)
}

/// Moves the calling thread into a new namespace.
fn namespace() -> File {
    unshare(CloneFlags::CLONE_NEWNET).unwrap_or_else(|error| {
        panic!("this test needs root, to make network namespaces: {error}");
    });
    File::open("/proc/thread-self/ns/net").expect("a thread can look at its own namespace")
}

/// Runs `does` in a namespace, on a new thread, since a namespace is a property of a thread.
fn within<T: Send>(namespace: &File, does: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        setns(namespace, CloneFlags::CLONE_NEWNET).expect("root can enter a namespace");
        does()
    };
    thread::scope(|scope| join(scope.spawn(enter)))
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn nft(rules: &str) -> String {
    let answer = ask(NFT, |command| {
        command.arg(rules);
    });
    answer.unwrap_or_else(|why| panic!("`nft {rules}`: {why}"))
}

fn number_after(word: &str, shown: &str) -> u64 {
    let number = shown.split(word).nth(1).and_then(|text| text.split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn tc(line: &str) -> String {
    configure(TC, line)
}

fn ip(line: &str) {
    configure(IP, line);
}

fn configure(program: Program, line: &str) -> String {
    let name = program.name;
    let answer = ask(program, |command| {
        command.args(line.split_whitespace());
    });
    answer.unwrap_or_else(|why| panic!("`{name} {line}`: {why}"))
}
