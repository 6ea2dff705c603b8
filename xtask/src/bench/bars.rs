//! What we want to reach, and how far we are from it.
//!
//! Responsible for the bars of one node and of three (DESIGN section 10). A bar counts as a ratio to a system that was measured in the
//! same run, since absolute figures are of the day and of the machine; absolute are only memory, which depends on
//! neither, the CPU of 10,000 sessions, of which the plan has a part of a core, and the most that a dead leader may cost,
//! which is a matter of settings.

use std::fmt;

use crate::bench::System;
use crate::bench::maths::ratio;

/// What a bar compares with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Than {
    /// So many times what this system has in the same run.
    Peer(System, f64),
    /// As much as this system has in the same run, and no more than this figure on any machine.
    PeerWithin(System, f64),
    /// So many times another figure of ours in the same run, by its id.
    Own(&'static str, f64),
    /// This figure, on any machine.
    Figure(f64),
}

/// One bar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    /// The id of the figure that has to reach it.
    pub(crate) id: &'static str,
    pub(crate) than: Than,
    pub(crate) better: Better,
}

/// Which figures are good ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// A bar that is missed by no more than this counts as met, and it is said: two runs differ by as much.
const TOLERANCE: f64 = 0.10;

/// How long a hand-over may take beside etcd's: 0.25 ms beside 0.4 to 0.7 ms on the day of the plan.
const HANDOVER: Than = Than::Peer(System::Etcd, 0.6);

/// The bars, and what some of the ratios come from: what was wanted beside what the peer had, on one day.
pub(crate) const BARS: &[Bar] = &[
    // 220 µs beside 145 µs.
    bar("single.acquire.p50", Than::Peer(System::RedisFsync, 1.5), Better::Lower),
    // As many as Redis that syncs too.
    bar("pairs.64.rate", Than::Peer(System::RedisFsync, 1.0), Better::Higher),
    bar("pairs.256.rate", Than::Peer(System::RedisFsync, 1.0), Better::Higher),
    bar("handover.once.2.p50", HANDOVER, Better::Lower),
    bar("handover.once.16.p50", HANDOVER, Better::Lower),
    bar("handover.once.64.p50", HANDOVER, Better::Lower),
    // Flat: no more than a quarter slower with 256 waiters than with 2.
    bar("handover.once.256.p50", Than::Own("handover.once.2.p50", 1.25), Better::Lower),
    bar("handover.again.2.p50", HANDOVER, Better::Lower),
    bar("handover.again.16.p50", HANDOVER, Better::Lower),
    bar("handover.again.64.p50", HANDOVER, Better::Lower),
    bar("handover.again.256.p50", Than::Own("handover.again.2.p50", 1.25), Better::Lower),
    bar("keepalive.cpu", Than::Figure(10.0), Better::Lower),
    bar("keepalive.together.cpu", Than::Figure(10.0), Better::Lower),
    bar("memory.bytes", Than::Figure(300.0), Better::Lower),
];

/// How long a hand-over may take beside ZooKeeper's, both with three nodes: 0.5 ms beside 0.74 ms on the day of the plan.
const CLUSTER_HANDOVER: Than = Than::Peer(System::Zookeeper, 0.65);

/// The bars of three nodes, beside three nodes each of the others.
pub(crate) const CLUSTER_BARS: &[Bar] = &[
    // 400 µs beside 682 µs.
    bar("single.acquire.p50", Than::Peer(System::Etcd, 0.6), Better::Lower),
    // 40,000 beside 4,300, and 100,000 beside 5,900.
    bar("pairs.64.rate", Than::Peer(System::Etcd, 9.0), Better::Higher),
    bar("pairs.256.rate", Than::Peer(System::Etcd, 15.0), Better::Higher),
    bar("handover.once.2.p50", CLUSTER_HANDOVER, Better::Lower),
    bar("handover.once.16.p50", CLUSTER_HANDOVER, Better::Lower),
    bar("handover.once.64.p50", CLUSTER_HANDOVER, Better::Lower),
    bar("handover.once.256.p50", Than::Own("handover.once.2.p50", 1.25), Better::Lower),
    bar("handover.again.2.p50", CLUSTER_HANDOVER, Better::Lower),
    bar("handover.again.16.p50", CLUSTER_HANDOVER, Better::Lower),
    bar("handover.again.64.p50", CLUSTER_HANDOVER, Better::Lower),
    bar("handover.again.256.p50", Than::Own("handover.again.2.p50", 1.25), Better::Lower),
    bar("keepalive.cpu", Than::Figure(15.0), Better::Lower),
    bar("keepalive.together.cpu", Than::Figure(15.0), Better::Lower),
    bar("failover.gap.p50", Than::PeerWithin(System::Zookeeper, 600.0), Better::Lower),
];

const fn bar(id: &'static str, than: Than, better: Better) -> Bar {
    Bar { id, than, better }
}

impl Better {
    /// Between a figure and its bar.
    pub(crate) fn sign(self) -> char {
        match self {
            Better::Lower => '≤',
            Better::Higher => '≥',
        }
    }
}

/// How a figure stands to its bar.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Verdict {
    /// Reached.
    Met,
    /// Missed by so many parts of the bar, which is no more than the tolerance.
    Within(f64),
    /// Missed by so many parts of the bar.
    MissedBy(f64),
}

impl Bar {
    /// The figure to reach, when what it compares with came to `than`.
    pub(crate) fn wanted(&self, than: f64) -> f64 {
        match self.than {
            Than::Peer(_, factor) | Than::Own(_, factor) => factor * than,
            Than::PeerWithin(_, most) => than.min(most),
            Than::Figure(figure) => figure,
        }
    }

    /// How `ours` stands to `wanted`; `None` if one of them is no figure above zero.
    pub(crate) fn verdict(&self, ours: f64, wanted: f64) -> Option<Verdict> {
        let by = match self.better {
            Better::Lower => ratio(ours, wanted)? - 1.0,
            Better::Higher => 1.0 - ratio(ours, wanted)?,
        };
        Some(match by {
            ..=0.0 => Verdict::Met,
            ..=TOLERANCE => Verdict::Within(by),
            _ => Verdict::MissedBy(by),
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Met => f.write_str("met"),
            Verdict::Within(by) => write!(f, "met but for {:.0} %", by * 100.0),
            Verdict::MissedBy(by) => write!(f, "missed by {:.0} %", by * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(better: Better) -> Bar {
        bar("any", Than::Peer(System::Etcd, 0.5), better)
    }

    #[test]
    fn a_bar_is_a_multiple_of_what_the_peer_has_today() {
        assert_eq!(any(Better::Lower).wanted(300.0), 150.0);
        let gap = bar("gap", Than::PeerWithin(System::Zookeeper, 600.0), Better::Lower);
        assert_eq!((gap.wanted(450.0), gap.wanted(900.0)), (450.0, 600.0));
        assert_eq!(bar("memory", Than::Figure(300.0), Better::Lower).wanted(9e9), 300.0);
    }

    #[test]
    fn a_tenth_below_the_bar_is_met_but_for_so_much_and_more_is_missed() {
        let slower = any(Better::Lower);
        assert_eq!(slower.verdict(90.0, 100.0), Some(Verdict::Met));
        assert_eq!(slower.verdict(100.0, 100.0), Some(Verdict::Met));
        assert!(
            matches!(slower.verdict(109.0, 100.0), Some(Verdict::Within(by)) if (0.08..0.10).contains(&by))
        );
        assert_eq!(slower.verdict(125.0, 100.0), Some(Verdict::MissedBy(0.25)));
        let fewer = any(Better::Higher);
        assert_eq!(fewer.verdict(110.0, 100.0), Some(Verdict::Met));
        assert!(
            matches!(fewer.verdict(91.0, 100.0), Some(Verdict::Within(by)) if (0.08..0.10).contains(&by))
        );
        assert_eq!(fewer.verdict(75.0, 100.0), Some(Verdict::MissedBy(0.25)));
        assert_eq!(fewer.verdict(75.0, 0.0), None);
        assert_eq!((slower.better.sign(), fewer.better.sign()), ('≤', '≥'));
        assert_eq!(Verdict::Within(0.09).to_string(), "met but for 9 %");
        assert_eq!(Verdict::MissedBy(0.25).to_string(), "missed by 25 %");
    }

    #[test]
    fn each_figure_has_one_bar_at_most_and_none_is_below_nothing() {
        for bars in [BARS, CLUSTER_BARS] {
            for (index, bar) in bars.iter().enumerate() {
                assert!(bars[..index].iter().all(|other| other.id != bar.id), "{} has two bars", bar.id);
                assert!(bar.wanted(1.0) > 0.0, "{bar:?}");
                if let Than::Own(id, _) = bar.than {
                    assert!(bars.iter().any(|other| other.id == id), "{id} is a figure of no bar");
                }
            }
        }
    }
}
