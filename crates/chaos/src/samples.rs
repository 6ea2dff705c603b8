//! Samples of the nodes of a run without faults, and their plot: what grows, or gets slower, shows in it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::Result;

/// What one node uses.
#[derive(Clone, Copy, Default)]
pub(crate) struct NodeUsage {
    /// Resident memory, in bytes.
    pub(crate) memory: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    /// Of its data directory, in bytes.
    pub(crate) disk: u64,
}

/// All nodes at one moment.
pub(crate) struct Sample {
    /// Since the first sample.
    pub(crate) seconds: f64,
    pub(crate) nodes: Vec<NodeUsage>,
    /// Acquires and releases of a free lock: the median and the slowest, in microseconds.
    pub(crate) pair: [u64; 2],
}

/// A line of the plot.
struct Curve {
    name: String,
    unit: &'static str,
    values: Vec<f64>,
}

const MIB: f64 = 1_048_576.0;
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 90.0;
const LEFT: f64 = 30.0;
const STEP: f64 = HEIGHT + 40.0;
const COLORS: [&str; 5] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b"];

/// What a process uses whose data are in this folder.
pub(crate) fn usage(pid: u32, data: &Path) -> Result<NodeUsage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    Ok(NodeUsage {
        memory: number("VmRSS:") * 1024,
        descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
        threads: number("Threads:"),
        disk: size(data)?,
    })
}

/// Of all files below. Some may vanish meanwhile.
fn size(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)?.flatten() {
        match entry.metadata() {
            Ok(it) if it.is_dir() => sum += size(&entry.path()).unwrap_or_default(),
            Ok(it) => sum += it.len(),
            Err(_) => {}
        }
    }
    Ok(sum)
}

fn curves(samples: &[Sample]) -> Vec<Vec<Curve>> {
    let nodes = samples.first().map_or(0, |sample| sample.nodes.len());
    let of_nodes = |what: &str, unit, value: fn(&NodeUsage) -> f64| -> Vec<Curve> {
        let curve = |node: usize| Curve {
            name: format!("{what}, node{}", node + 1),
            unit,
            values: samples.iter().filter_map(|sample| sample.nodes.get(node).map(value)).collect(),
        };
        (0..nodes).map(curve).collect()
    };
    let pair = |name: &str, index: usize| Curve {
        name: name.to_owned(),
        unit: "ms",
        values: samples.iter().map(|sample| sample.pair[index] as f64 / 1000.0).collect(),
    };
    vec![
        of_nodes("memory", "MiB", |it| it.memory as f64 / MIB),
        of_nodes("data directory", "MiB", |it| it.disk as f64 / MIB),
        of_nodes("descriptors", "", |it| it.descriptors as f64),
        of_nodes("threads", "", |it| it.threads as f64),
        vec![pair("acquire and release, median", 0)],
        vec![pair("acquire and release, slowest of a sample", 1)],
    ]
}

impl Curve {
    /// The medians of the second and of the last tenth of the run: at the start, everything grows.
    fn ends(&self) -> [f64; 2] {
        let (count, tenth) = (self.values.len(), (self.values.len() / 10).max(1));
        let median = |values: &[f64]| {
            let mut values = values.to_vec();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        let part = |from: usize| median(&self.values[from.min(count)..(from + tenth).min(count)]);
        [part(tenth), part(count.saturating_sub(tenth))]
    }
}

/// For people: each curve at the beginning and at the end.
pub(crate) fn text(samples: &[Sample]) -> String {
    let mut out = String::from("sampled                                    second tenth   last tenth\n");
    for curve in curves(samples).iter().flatten() {
        let [from, to] = curve.ends();
        let _ = writeln!(out, "  {:<40} {from:>12.2} {to:>12.2} {}", curve.name, curve.unit);
    }
    out
}

/// The plot, as SVG.
pub(crate) fn plot(samples: &[Sample]) -> String {
    let (panels, seconds) = (curves(samples), samples.last().map_or(1.0, |last| last.seconds.max(1.0)));
    let (width, height) = (WIDTH + 2.0 * LEFT, STEP * panels.len() as f64 + 20.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        let top = STEP * index as f64 + 30.0;
        let most = panel.iter().flat_map(|curve| &curve.values).copied().fold(0.001, f64::max) * 1.1;
        let _ = writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#bbb\"/>"
        );
        let mut x = LEFT;
        for (curve, color) in panel.iter().zip(COLORS) {
            let [_, last] = curve.ends();
            let label = format!("{}: {last:.1} {}", curve.name, curve.unit);
            let _ =
                writeln!(out, "<text x=\"{x}\" y=\"{}\" fill=\"{color}\">{}</text>", top - 6.0, label.trim());
            x += WIDTH / 3.0;
            let points: Vec<String> = samples
                .iter()
                .zip(&curve.values)
                .map(|(sample, value)| {
                    let right = LEFT + sample.seconds / seconds * WIDTH;
                    format!("{right:.1},{:.1}", top + HEIGHT - value / most * HEIGHT)
                })
                .collect();
            let points = points.join(" ");
            let _ = writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\"/>");
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{}\">0 to {:.0} minutes; each panel from 0</text>\n</svg>",
        height - 8.0,
        seconds / 60.0
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(memory: impl Fn(u64) -> u64) -> Vec<Sample> {
        let node = |at| NodeUsage { memory: memory(at) << 20, descriptors: 40, threads: 9, disk: 5 << 20 };
        (0..100)
            .map(|at| Sample { seconds: at as f64, nodes: vec![node(at); 3], pair: [900, 4000] })
            .collect()
    }

    #[test]
    fn growth_shows_in_the_text() {
        let line = |memory: fn(u64) -> u64| {
            let text = text(&samples(memory));
            let line = text.lines().find(|line| line.contains("memory, node2")).unwrap().to_owned();
            line.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(line(|_| 60), ["60.00", "60.00", "MiB"]);
        assert_eq!(line(|at| 60 + at), ["75.00", "155.00", "MiB"]);
    }

    #[test]
    fn plot_has_a_line_for_each_node_and_time() {
        let plot = plot(&samples(|at| at));
        assert_eq!(plot.matches("<polyline").count(), 4 * 3 + 2);
        assert!(plot.contains("data directory, node3: 5.0 MiB") && plot.ends_with("</svg>\n"), "{plot}");
    }
}
