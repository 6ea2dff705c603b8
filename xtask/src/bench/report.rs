//! The report of a run: a table for people, JSON for programs.
//!
//! Responsible for medians, ratios and bars. A missed bar must not fail a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use comfy_table::{Table, presets};
use serde_json::{Map, json};

use crate::TaskResult;
use crate::bench::bars::{Bar, Than};
use crate::bench::figures::{self, Figure};
use crate::bench::maths::{median, ratio};
use crate::bench::workloads::Measured;
use crate::bench::{System, Workload, name};

/// If the disk latencies before the measurements differ by more than this factor, systems that sync to disk
/// can't be compared.
const DISK_VARIES: f64 = 2.0;

/// The measured values of a run.
pub(crate) struct BenchReport {
    systems: Vec<System>,
    figures: Vec<Figure>,
    bars: &'static [Bar],
    /// The number of nodes of each system, which write to the same disk.
    nodes: usize,
    /// One value for each measurement, by figure and system.
    values: BTreeMap<(String, System), Vec<f64>>,
    fdatasync_us: Vec<f64>,
    /// The disk latencies before the measurements of each system.
    fdatasync_before_us: BTreeMap<System, Vec<f64>>,
    notes: Vec<String>,
    failed: Vec<String>,
}

impl BenchReport {
    pub(crate) fn new(
        systems: &[System],
        workloads: &[Workload],
        bars: &'static [Bar],
        nodes: usize,
    ) -> Self {
        let figures = figures::all().into_iter().filter(|figure| workloads.contains(&figure.workload));
        Self {
            systems: systems.to_vec(),
            figures: figures.collect(),
            bars,
            nodes,
            values: BTreeMap::new(),
            fdatasync_us: Vec::new(),
            fdatasync_before_us: BTreeMap::new(),
            notes: Vec::new(),
            failed: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, system: System, measured: Measured) {
        for (id, value) in measured {
            self.values.entry((id, system)).or_default().push(value);
        }
    }

    /// Adds the disk latency measured before or after the run.
    pub(crate) fn fdatasync(&mut self, p50_us: f64) {
        self.fdatasync_us.push(p50_us);
    }

    /// Adds the disk latency before a measurement of `system`.
    pub(crate) fn fdatasync_before(&mut self, system: System, p50_us: f64) {
        self.fdatasync_before_us.entry(system).or_default().push(p50_us);
    }

    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(crate) fn fail(&mut self, system: System, error: String) {
        self.failed.push(format!("{}: {error}", name(system)));
    }

    /// Returns an error that names every system whose measurements failed, if any.
    pub(crate) fn failures(&self) -> TaskResult {
        if self.failed.is_empty() {
            Ok(())
        } else {
            Err(format!("not all was measured: {}", self.failed.join("; ")))
        }
    }

    /// Prints the table (Markdown) and its notes.
    pub(crate) fn print(&self) {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        let peers = self.systems.iter().copied();
        let heads = ["what".to_owned(), "unit".to_owned()].into_iter().chain(peers.clone().map(name));
        table.set_header(heads.chain(["bar".to_owned()]));
        for figure in &self.figures {
            let cells = peers.clone().map(|system| self.cell(figure, system));
            let row = [figure.what.clone(), figure.unit.to_owned()].into_iter().chain(cells);
            table.add_row(row.chain([self.bar(figure).unwrap_or_default()]));
        }
        println!("{table}");
        println!("\nMedians of the rounds. In brackets: ours divided by that system's.");
        let disk: Vec<String> = self.fdatasync_us.iter().map(|p50| format!("{} µs", short(*p50))).collect();
        let at_once = if self.nodes > 1 { format!(", {} at once", self.nodes) } else { String::new() };
        println!("fdatasync of 128 bytes{at_once}, p50, before and after: {}", disk.join(", "));
        for (system, before) in &self.fdatasync_before_us {
            let (least, most) = range(before);
            println!("  before the turns of {}: {} to {} µs", name(*system), short(least), short(most));
        }
        let (least, most) = range(self.fdatasync_before_us.values().flatten());
        if most > DISK_VARIES * least {
            println!("The disk was not the same for all turns: compare no durable systems by this run.");
        }
        self.notes.iter().for_each(|note| println!("{note}"));
    }

    /// Writes the values of all measurements, their medians, and the notes, as JSON.
    pub(crate) fn write_json(&self, file: &Path) -> TaskResult {
        let mut figures = Map::new();
        for figure in &self.figures {
            let mut systems = Map::new();
            for system in &self.systems {
                let Some(rounds) = self.values.get(&(figure.id.clone(), *system)) else { continue };
                systems.insert(
                    name(*system),
                    json!({ "median": self.median(&figure.id, *system), "rounds": rounds }),
                );
            }
            let value = json!({ "what": figure.what, "unit": figure.unit, "systems": systems, "bar": self.bar(figure) });
            figures.insert(figure.id.clone(), value);
        }
        let before: BTreeMap<String, &Vec<f64>> =
            self.fdatasync_before_us.iter().map(|(system, before)| (name(*system), before)).collect();
        let value = json!({
            "nodes": self.nodes,
            "fdatasync_p50_us": self.fdatasync_us,
            "fdatasync_p50_us_before_turns": before,
            "figures": figures,
            "notes": self.notes,
            "failed": self.failed,
        });
        let text = format!("{:#}\n", value);
        fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
    }

    fn cell(&self, figure: &Figure, system: System) -> String {
        let Some(value) = self.median(&figure.id, system) else { return "–".to_owned() };
        let ours = self.median(&figure.id, System::Ours).filter(|_| system != System::Ours);
        match ours.and_then(|ours| ratio(ours, value)) {
            Some(ratio) => format!("{} ({})", short(value), short(ratio)),
            None => short(value),
        }
    }

    /// The bar of a figure, and whether our figure meets it; `None` without a bar, or without the figure that
    /// the bar is relative to.
    fn bar(&self, figure: &Figure) -> Option<String> {
        let bar = self.bars.iter().find(|bar| bar.id == figure.id)?;
        let (than, words) = match bar.than {
            Than::Peer(system, factor) => {
                (self.median(bar.id, system)?, format!("{factor:.2} × {}", name(system)))
            }
            Than::PeerWithin(system, most) => {
                (self.median(bar.id, system)?, format!("{}, and ≤ {}", name(system), short(most)))
            }
            Than::Own(id, factor) => {
                (self.median(id, System::Ours)?, format!("{factor:.2} × that of 2 waiters"))
            }
            Than::Figure(_) => (0.0, "fixed".to_owned()),
        };
        let wanted = bar.wanted(than);
        let sign = bar.better.sign();
        let verdict = bar.verdict(self.median(bar.id, System::Ours)?, wanted)?;
        Some(format!("{sign} {} ({words}): {verdict}", short(wanted)))
    }

    fn median(&self, id: &str, system: System) -> Option<f64> {
        median(self.values.get(&(id.to_owned(), system))?)
    }
}

/// Minimum and maximum.
fn range<'a>(values: impl IntoIterator<Item = &'a f64>) -> (f64, f64) {
    values.into_iter().fold((f64::INFINITY, 0.0), |(least, most), value| (value.min(least), value.max(most)))
}

/// Formats with no decimals from 100 on, one from 10 on, and two below.
fn short(value: f64) -> String {
    let decimals = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}")
}
