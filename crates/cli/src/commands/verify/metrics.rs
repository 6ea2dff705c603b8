//! The figures of `verify --follow` for Prometheus: a file for the textfile collector of its node exporter.

use std::fmt::Write as _;
use std::path::Path;

use lockkeeper::BootInstant;
use lockkeeper_verify::Checker;

use crate::exit::{CANNOT_CREATE, Failure};
use crate::output;

/// Writes the file anew. `newest`: the time of the newest line that was read, in nanoseconds; 0 before the
/// first.
pub(super) fn write(path: &Path, checker: &Checker, newest: u64) -> Result<(), Failure> {
    let (counts, (open, locks)) = (checker.counts(), checker.size());
    let lag_ns = if newest == 0 { 0 } else { BootInstant::now().as_nanos().saturating_sub(newest) };
    let figures = [
        ("violations_total", "counter", "Violations of what locks promise", counts.violations as f64),
        ("operations_total", "counter", "Operations that were checked", counts.operations() as f64),
        ("holds", "gauge", "Holds that have not ended", open as f64),
        ("locks", "gauge", "Locks that the checker remembers", locks as f64),
        ("newest_line_age_seconds", "gauge", "Age of the newest line that was read", lag_ns as f64 / 1e9),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in figures {
        let name = format!("lockkeeper_verify_{name}");
        let _ = write!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    output::replace(path, &text).map_err(|error| {
        Failure::system(CANNOT_CREATE, &format!("cannot write the metrics `{}`", path.display()), &error)
    })
}
