//! Networks of network namespaces.

use std::net::UdpSocket;
use std::time::Duration;

use lockkeeper_rig::Network;

const PORT: u16 = 5000;

/// Two hosts that send each other numbers.
struct Two {
    network: Network,
    sockets: [UdpSocket; 2],
}

impl Two {
    fn new() -> Self {
        let network = Network::around_this_thread(2);
        let sockets = [0, 1].map(|host| {
            let socket = network.at(host, || UdpSocket::bind((network.address(host), PORT)).unwrap());
            socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            socket
        });
        Self { network, sockets }
    }

    fn send(&self, from: usize, number: u8) {
        self.sockets[from].send_to(&[number], (self.network.address(1 - from), PORT)).unwrap();
    }

    /// The next number that arrives; it must be from the other host.
    fn next(&self, at: usize) -> u8 {
        let mut number = [0];
        let (_, from) = self.sockets[at].recv_from(&mut number).unwrap();
        assert_eq!(from, (self.network.address(1 - at), PORT).into());
        number[0]
    }
}

#[test]
fn link_is_cut_in_one_direction_and_mended() {
    let two = Two::new();
    two.send(0, 1);
    two.send(1, 2);
    assert_eq!((two.next(1), two.next(0)), (1, 2));

    two.network.cut(0, 1);
    two.send(0, 3);
    two.send(1, 4);
    assert_eq!(two.next(0), 4, "the other direction is open");
    two.network.mend(0, 1);
    two.send(0, 5);
    assert_eq!(two.next(1), 5, "what was sent while it was cut is lost");
}

#[test]
fn packets_are_lost_for_a_time_and_counted() {
    let two = Two::new();
    two.network.lose(99);
    (0..50).for_each(|_| two.send(0, 1));
    let lost = two.network.lose_no_more();
    assert!((1..=50).contains(&lost), "{lost}");
    two.send(0, 2);
    let passed = std::iter::repeat_with(|| two.next(1)).take_while(|number| *number != 2).count();
    assert_eq!(lost + passed as u64, 50);
}

#[test]
fn slow_link_delays_packets_and_is_fast_again() {
    let two = Two::new();
    two.network.slow(1, "8kbit");
    // Twice as much as passes at once.
    (0..200).for_each(|number| two.send(0, number));
    assert_eq!(two.next(1), 0);
    assert!(two.network.slow_no_more(1) > 0, "none has waited");
    two.send(0, 255);
    while two.next(1) != 255 {}
}

#[test]
fn networks_are_isolated_from_each_other() {
    let first = Two::new();
    let second = std::thread::spawn(Two::new).join().unwrap();
    first.send(0, 1);
    second.send(0, 2);
    assert_eq!((first.next(1), second.next(1)), (1, 2));
}
