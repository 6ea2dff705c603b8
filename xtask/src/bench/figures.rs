//! The list of figures in the report.
//!
//! Responsible for the ids and descriptions of the figures, and their order in the report. `workloads`
//! measures them.

use crate::bench::Workload;

/// Number of clients of each run of `pairs`.
pub(crate) const PAIRS_CLIENTS: [usize; 2] = [64, 256];
/// Number of waiters of each run of `handover`.
pub(crate) const WAITERS: [usize; 4] = [2, 16, 64, 256];

/// Number of clients of the second run of `cached`.
pub(crate) const CACHED_CLIENTS: usize = 64;

/// How often `failover` kills a leader.
pub(crate) const KILLS: usize = 7;

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Figure {
    /// The figure's name in the JSON file and in the bars.
    pub(crate) id: String,
    /// The figure's description in the report.
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) workload: Workload,
}

/// All figures, in the order of the report.
pub(crate) fn all() -> Vec<Figure> {
    let mut all = Vec::new();
    let mut add = |workload, id: &str, what: &str, unit| {
        all.push(Figure { id: id.to_owned(), what: what.to_owned(), unit, workload });
    };
    add(Workload::Single, "single.acquire.p50", "1 client: acquire, p50", "µs");
    add(Workload::Single, "single.acquire.p99", "1 client: acquire, p99", "µs");
    for clients in PAIRS_CLIENTS {
        let id = |what: &str| format!("pairs.{clients}.{what}");
        add(Workload::Pairs, &id("rate"), &format!("{clients} clients: pairs"), "1/s");
        add(Workload::Pairs, &id("acquire.p50"), &format!("{clients} clients: acquire, p50"), "µs");
        add(Workload::Pairs, &id("acquire.p99"), &format!("{clients} clients: acquire, p99"), "µs");
    }
    for (variant, words) in [("once", "each waits once"), ("again", "holders queue again")] {
        for waiters in WAITERS {
            let id = |what: &str| format!("handover.{variant}.{waiters}.{what}");
            let what = |what: &str| format!("hand-over, {waiters} waiters, {words}: {what}");
            add(Workload::Handover, &id("p50"), &what("p50"), "µs");
            add(Workload::Handover, &id("p99"), &what("p99"), "µs");
            if variant == "again" {
                add(Workload::Handover, &id("rate"), &what("to waiters"), "1/s");
            }
        }
    }
    let again = "again and again: acquire and release";
    add(Workload::Cached, "cached.pair.p50", &format!("1 client, one name {again}, p50"), "µs");
    add(Workload::Cached, "cached.pair.p99", &format!("1 client, one name {again}, p99"), "µs");
    add(
        Workload::Cached,
        "cached.64.rate",
        &format!("{CACHED_CLIENTS} clients, a name each {again}: pairs"),
        "1/s",
    );
    add(Workload::Cached, "cached.taken.p50", "another client takes such a lock while it is idle, p50", "µs");
    add(Workload::Keepalive, "keepalive.cpu", "10,000 sessions kept alive: server", "% of a core");
    let together = "10,000 sessions kept alive, a frame a stream and round: server";
    add(Workload::Keepalive, "keepalive.together.cpu", together, "% of a core");
    let gap = |what: &str| format!("leader killed: gap of one client, {what} of {KILLS} times");
    add(Workload::Failover, "failover.gap.p50", &gap("median"), "ms");
    add(Workload::Failover, "failover.gap.max", &gap("longest"), "ms");
    add(Workload::Memory, "memory.bytes", "100,000 held locks: server's memory a lock", "bytes");
    all
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::bench::bars::{BARS, CLUSTER_BARS};

    #[test]
    fn every_bar_has_a_figure() {
        let all = all();
        for bar in BARS.iter().chain(CLUSTER_BARS) {
            assert!(all.iter().any(|figure| figure.id == bar.id), "no figure has the id {}", bar.id);
        }
    }

    #[test]
    fn every_workload_has_figures_and_figure_ids_are_unique() {
        let all = all();
        for workload in Workload::value_variants() {
            assert!(all.iter().any(|figure| figure.workload == *workload), "{workload:?} has no figure");
        }
        for (index, figure) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other.id != figure.id), "{} is there twice", figure.id);
        }
    }
}
