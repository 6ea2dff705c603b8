//! Quotas: limits of what the sessions of one identity, and all sessions, have in the table.

use std::time::Duration;

use lockkeeper_core::Usage;
use lockkeeper_replica::{Event, StreamId};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::{self, server_item::What};

use crate::harness::{Node, frame, opening};
use crate::items::{acquire, attach, bodies, finish, granted};

const THREE: Usage = Usage { requests: 3, ..Usage::UNLIMITED };

fn with_quota(quota: Usage) -> Node {
    let mut node = Node::new();
    node.quota = quota;
    node
}

fn set_value(session: u64, seq: u64, target: u64, value: Vec<u8>) -> v1::ClientItem {
    let what = v1::client_item::What::SetValue(v1::SetValue { seq, target, value, done_through: 0 });
    v1::ClientItem { session, what: Some(what) }
}

fn quotas(total: Usage, by_identity: &[(&str, Usage)]) -> Event {
    let by_identity = by_identity.iter().map(|&(identity, most)| (identity.into(), most)).collect();
    Event::Quotas { total, by_identity }
}

/// The texts of the refusals, all of which must be of a reached limit.
fn refusals(items: Vec<v1::ServerItem>) -> Vec<(u64, String)> {
    let texts = bodies(items).into_iter().filter_map(|(seq, what)| match what {
        What::Refused(refused) => {
            assert_eq!(refused.code(), v1::RefusedCode::Limit, "{}", refused.text);
            Some((seq, refused.text))
        }
        _ => None,
    });
    texts.collect()
}

#[test]
fn limit_is_exact_although_requests_are_pipelined() {
    let mut node = with_quota(THREE);
    let stream = node.stream_of(1, "billing");
    let session = node.open(stream, 1, 10_000, 0);
    // One frame: none of them is applied when the last one is checked.
    let heard =
        node.send(stream, (1..=5).map(|seq| acquire(session, seq, &format!("n{seq}"), true)).collect());
    let refused = refusals(heard);
    let numbers: Vec<u64> = refused.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers, [4, 5]);
    assert!(
        refused[0].1.contains("billing may have 3 holds and waiters, has 3, and this needs 1 more"),
        "{refused:?}"
    );
    assert_eq!(node.over_quota.len(), 2);
    assert_eq!(node.replica.table().usage("billing").requests, 3);
    // A hold counts until its release is applied.
    let heard = node.send(stream, vec![finish(session, 6, 1), acquire(session, 7, "n7", true)]);
    assert_eq!(refusals(heard).len(), 1);
    // A request that is answered with "busy" takes no room.
    let heard = node.send(stream, vec![acquire(session, 8, "n2", false)]);
    assert!(matches!(bodies(heard)[..], [(8, What::Busy(_))]));
    assert!(granted(&node.send(stream, vec![acquire(session, 9, "n9", true)])).is_some());
    assert_eq!(refusals(node.send(stream, vec![acquire(session, 10, "n10", true)])).len(), 1);
}

#[test]
fn identities_do_not_share_a_limit_and_sessions_of_one_do() {
    let mut node = with_quota(THREE);
    let (one, two, other) =
        (node.stream_of(1, "billing"), node.stream_of(2, "billing"), node.stream_of(3, "x"));
    let (a, b, c) =
        (node.open(one, 1, 10_000, 0), node.open(two, 2, 10_000, 0), node.open(other, 3, 10_000, 0));
    let names = |session: u64, from: u64| {
        let wanted = (from..from + 2).map(|seq| acquire(session, seq, &format!("{session}/{seq}"), true));
        wanted.collect::<Vec<_>>()
    };
    assert!(refusals(node.send(one, names(a, 1))).is_empty());
    assert_eq!(refusals(node.send(two, names(b, 1))).len(), 1, "they have two, and may have three");
    assert!(refusals(node.send(other, names(c, 1))).is_empty());
}

/// Its client must learn that it holds the lock: the first answer was lost with the stream.
#[test]
fn repetition_of_an_acquire_is_not_refused() {
    let mut node = with_quota(Usage { requests: 1, ..Usage::UNLIMITED });
    let stream = node.stream_of(1, "billing");
    let session = node.open(stream, 1, 10_000, 0);
    let again = node.stream_of(2, "billing");
    // All in one turn: the first acquire is queued and not applied when it is repeated.
    let repeated = vec![attach(session, 1, 2), acquire(session, 1, "x", true)];
    node.turn(vec![frame(stream, vec![acquire(session, 1, "x", true)]), frame(again, repeated)]);
    let heard = node.heard(again);
    assert!(granted(&[heard.into_iter().find(|item| item.seq == 1).unwrap()]).is_some());
    assert!(node.over_quota.is_empty(), "{:?}", node.over_quota);
}

#[test]
fn sessions_waiters_names_and_bytes_have_limits_too() {
    let most = Usage { sessions: 1, waiters: 1, names: 4, bytes: 5_000, ..Usage::UNLIMITED };
    let mut node = with_quota(most);
    let stream = node.stream_of(1, "billing");
    let session = node.open(stream, 1, 10_000, 0);
    let second = node.send(stream, vec![Request::Open(opening(2, 1)).into()]);
    assert!(refusals(second)[0].1.contains("may have 1 sessions, has 1, and"));
    let same = node.send(stream, vec![Request::Open(opening(1, 5)).into()]);
    assert!(refusals(same).is_empty(), "it is open already");
    node.send(stream, vec![acquire(session, 1, "x", false)]);
    assert!(refusals(node.send(stream, vec![acquire(session, 2, "x", true)])).is_empty());
    let waits = refusals(node.send(stream, vec![acquire(session, 3, "x", true)]));
    assert!(waits[0].1.contains("may have 1 waiters, has 1, and"), "{waits:?}");
    assert!(
        refusals(node.send(stream, vec![acquire(session, 4, "y", false)])).is_empty(),
        "it does not wait"
    );
    node.send(stream, vec![acquire(session, 5, "z", false)]);
    let names = refusals(node.send(stream, vec![acquire(session, 6, "zz", false)]));
    assert!(names[0].1.contains("may have 4 names"), "{names:?}");
    let bytes = refusals(node.send(stream, vec![set_value(session, 7, 1, vec![7; 4_096])]));
    assert!(bytes[0].1.contains("may have 5000 bytes"), "{bytes:?}");
    // A value that is not longer than the one before is never refused.
    let value = |seq: u64, byte| set_value(session, seq, 1, vec![byte; 900]);
    assert!(refusals(node.send(stream, vec![value(8, 1), value(9, 2)])).is_empty());
    node.turn(vec![quotas(Usage::UNLIMITED, &[("billing", Usage { bytes: 1, ..most })])]);
    assert!(refusals(node.send(stream, vec![value(10, 3)])).is_empty());
}

#[test]
fn limits_change_while_streams_are_open_and_hold_for_all_together() {
    let mut node = with_quota(Usage::UNLIMITED);
    let (one, two) = (node.stream_of(1, "billing"), node.stream_of(2, "reports"));
    let (a, b) = (node.open(one, 1, 10_000, 0), node.open(two, 2, 10_000, 0));
    node.send(one, vec![acquire(a, 1, "a", true), acquire(a, 2, "b", true)]);
    let one_request = ("billing", Usage { requests: 1, ..Usage::UNLIMITED });
    node.turn(vec![quotas(Usage::UNLIMITED, &[one_request])]);
    assert_eq!(refusals(node.send(one, vec![acquire(a, 3, "c", true)])).len(), 1, "it keeps what it has");
    node.turn(vec![quotas(Usage { requests: 2, ..Usage::UNLIMITED }, &[])]);
    let all = refusals(node.send(two, vec![acquire(b, 1, "d", true)]));
    assert!(all[0].1.contains("all clients together may have 2 holds and waiters, have 2, and"), "{all:?}");
    node.turn(vec![quotas(Usage::UNLIMITED, &[])]);
    assert!(granted(&node.send(two, vec![acquire(b, 1, "d", true)])).is_some());
}

/// After a restart the numbers are those of the table, from the log or from a snapshot.
#[test]
fn usage_survives_a_restart() {
    let mut node = with_quota(THREE);
    let stream = node.stream_of(1, "billing");
    let session = node.open(stream, 1, 10_000, 0);
    node.send(stream, (1..=3).map(|seq| acquire(session, seq, &format!("n{seq}"), true)).collect());
    let before = node.replica.table().usage("billing");
    let mut node = node.restart();
    assert_eq!(node.replica.table().usage("billing"), before);
    node.quota = THREE;
    let stream: StreamId = node.stream_of(2, "billing");
    node.send(stream, vec![attach(session, 1, 2)]);
    assert_eq!(refusals(node.send(stream, vec![acquire(session, 4, "n4", true)])).len(), 1);
    let held = node.send(stream, vec![acquire(session, 1, "n1", true)]);
    assert!(granted(&held).is_some(), "a repetition: {held:?}");
}

/// Otherwise a client with a small quota could close all names, one after the other.
#[test]
fn closed_hold_counts_for_the_identity_that_held_it_until_it_opens() {
    let mut node = with_quota(Usage { requests: 1, ..Usage::UNLIMITED });
    let stream = node.stream_of(1, "billing");
    let session = node.open(stream, 1, 10_000, 0);
    let what = v1::client_item::What::Acquire(v1::Acquire {
        seq: 1,
        names: vec!["x".to_owned()],
        mode: v1::Mode::Exclusive.into(),
        keep_closed_ms: 5_000,
        ..v1::Acquire::default()
    });
    let held = node.send(stream, vec![v1::ClientItem { session, what: Some(what) }]);
    assert!(granted(&held).is_some());
    node.send(stream, vec![finish(session, 2, 1)]);
    assert_eq!(node.replica.table().usage("billing").requests, 1);
    let refused = refusals(node.send(stream, vec![acquire(session, 3, "y", false)]));
    assert!(refused[0].1.contains("billing may have 1 holds and waiters, has 1"), "{refused:?}");
    node.pass(Duration::from_secs(6));
    assert_eq!(node.replica.table().usage("billing").requests, 0);
    assert!(granted(&node.send(stream, vec![acquire(session, 4, "y", false)])).is_some());
}

/// Answers are kept until their client confirms them, also those of commands that change nothing.
#[test]
fn kept_answers_count_as_bytes() {
    const SESSIONS: u8 = 8;
    const COMMANDS: u64 = 1_000;
    let mut node = with_quota(Usage { bytes: 100_000, ..Usage::UNLIMITED });
    let stream = node.stream_of(1, "billing");
    let mut refused = 0;
    let sessions: Vec<u64> = (1..=SESSIONS).map(|number| node.open(stream, number, 60_000, 0)).collect();
    for session in sessions {
        let downgrade = |seq| {
            let it = v1::Downgrade { seq, target: u64::MAX, done_through: 0 };
            v1::ClientItem { session, what: Some(v1::client_item::What::Downgrade(it)) }
        };
        for part in 0..COMMANDS / 100 {
            let seqs = part * 100 + 1..=(part + 1) * 100;
            let heard = bodies(node.send(stream, seqs.map(downgrade).collect()));
            let is_limit =
                |what: &What| matches!(what, What::Refused(it) if it.code() == v1::RefusedCode::Limit);
            refused += heard.iter().filter(|(_, what)| is_limit(what)).count();
        }
    }
    let bytes = node.replica.table().usage("billing").bytes;
    assert!(bytes <= 100_000 + (1 << 20), "{bytes}");
    assert!(refused > 0, "{bytes} bytes");
}

/// Its client has not learned that the session is open: the first answer was lost with the stream.
#[test]
fn repetition_of_an_open_that_is_queued_is_not_refused() {
    let mut node = with_quota(Usage { sessions: 1, ..Usage::UNLIMITED });
    let (first, again) = (node.stream_of(1, "billing"), node.stream_of(2, "billing"));
    let open = |attach| vec![Request::Open(opening(1, attach)).into()];
    // One turn: the first one is not applied when it is repeated.
    node.turn(vec![frame(first, open(1)), frame(again, open(2))]);
    let opened = node.heard(again);
    assert!(matches!(bodies(opened)[..], [(_, What::Opened(_))]));
    assert!(node.over_quota.is_empty(), "{:?}", node.over_quota);
    assert_eq!(node.replica.table().usage("billing").sessions, 1);
    // A denied one is answered too, now that the session is there.
    let refused = v1::Refused { code: v1::RefusedCode::Limit.into(), text: "no".into(), secret_prefix: 0 };
    let denied = |number, attach| {
        let request = Box::new(Request::Open(opening(number, attach)));
        Event::Frame(again, vec![Request::Denied { request, refused: refused.clone() }])
    };
    node.turn(vec![denied(1, 3)]);
    assert!(matches!(bodies(node.heard(again))[..], [(_, What::Opened(_))]));
    node.turn(vec![denied(2, 1)]);
    let heard = node.heard(again);
    let prefix = opening(2, 1).secret.prefix();
    let [What::Refused(it)] = &bodies(heard).into_iter().map(|(_, what)| what).collect::<Vec<_>>()[..] else {
        panic!()
    };
    assert_eq!((it.text.as_str(), it.secret_prefix), ("no", prefix));
}

#[test]
fn value_of_a_hold_that_is_only_queued_counts() {
    let mut node = with_quota(Usage { bytes: 3_000, ..Usage::UNLIMITED });
    let stream = node.stream_of(1, "billing");
    let session = node.open(stream, 1, 10_000, 0);
    let heard =
        node.send(stream, vec![acquire(session, 1, "x", false), set_value(session, 2, 1, vec![7; 4_000])]);
    let refused = refusals(heard);
    assert!(refused[0].1.contains("may have 3000 bytes"), "{refused:?}");
}
