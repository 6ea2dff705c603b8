//! The page of all recorded runs: a row for each, and their sums.

use std::fs;
use std::process::Command;

use crate::Result;
use crate::summary::Summary;

const PAGE: &str = "docs/proof.md";
const HEAD: &str = "| commit | seed | on | seconds | operations | faults | bitten | violations |";
const SUM: &str = "All rows: ";
const GOAL_OPERATIONS: u64 = 1_000_000_000;
const GOAL_SECONDS: u64 = 24 * 3600;

/// The commit that a run begins with.
pub(crate) fn commit() -> Result<String> {
    let git = |args: &[&str]| -> Result<String> {
        let output = Command::new("git").args(args).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=8", "HEAD"])?;
    let is_changed = !git(&["status", "--porcelain", "--", "crates", "Cargo.lock"])?.is_empty();
    Ok(format!("{commit}{}", if is_changed { " with changes" } else { "" }))
}

/// Appends a row for a run.
pub(crate) fn record(summary: &Summary, commit: &str) -> Result {
    let [injected, bitten] = summary.faults();
    let on = match summary.options.on.as_str() {
        "own" if summary.options.nodes() == 1 => "own, 1 node".to_owned(),
        "own" => format!("own, {} nodes", summary.options.nodes),
        other => other.to_owned(),
    };
    let numbers = [summary.seconds(), summary.operations(), injected, bitten, summary.violations()];
    let numbers = numbers.map(grouped).join(" | ");
    let row = format!("| {commit} | {} | {on} | {numbers} |", summary.options.seed);
    let page = fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    Ok(fs::write(PAGE, appended(&page, &row)?)?)
}

/// The page with one more row, and new sums.
fn appended(page: &str, row: &str) -> Result<String> {
    let head = page.find(HEAD).ok_or("the page has no table")?;
    let sum = page[head..].find(SUM).ok_or("the page has no sums")? + head;
    let rows = format!("{}\n{row}", page[..sum].trim_end());
    let sums = sums(&rows)?;
    let rest = page[sum..].find('\n').map_or("", |end| &page[sum + end..]);
    Ok(format!("{rows}\n\n{sums}{rest}"))
}

/// The line with the sums of a page's rows.
fn sums(page: &str) -> Result<String> {
    let head = page.find(HEAD).ok_or("the page has no table")?;
    let (mut all, mut own) = ([0_u64; 5], [0_u64; 5]);
    let rows = page[head..].lines().skip(2).take_while(|line| line.starts_with('|'));
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, _, on, numbers @ ..] = cells.as_slice() else { return Err("a short row".into()) };
        for (index, cell) in numbers.iter().enumerate().take(all.len()) {
            let number = cell.replace(',', "").parse::<u64>()?;
            all[index] += number;
            own[index] += if on.starts_with("own") { number } else { 0 };
        }
    }
    let [seconds, operations, faults, bitten, violations] = all;
    let part = |of: u64, goal: u64| of as f64 / goal as f64 * 100.0;
    Ok(format!(
        "{SUM}{} s, {} operations, {} faults ({} bitten), {} violations: {:.2} % of the operations and {:.2} % of the \
         time of the goal. Of these, our own service: {} s, {} operations, {} faults.",
        grouped(seconds),
        grouped(operations),
        grouped(faults),
        grouped(bitten),
        grouped(violations),
        part(operations, GOAL_OPERATIONS),
        part(seconds, GOAL_SECONDS),
        grouped(own[0]),
        grouped(own[1]),
        grouped(own[2])
    ))
}

/// With a comma between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> String {
        let path = format!("{}/../../{PAGE}", env!("CARGO_MANIFEST_DIR"));
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn sums_on_the_page_are_those_of_its_rows() {
        let page = page();
        let line = page.lines().find(|line| line.starts_with(SUM)).unwrap();
        assert_eq!(line, sums(&page).unwrap());
    }

    #[test]
    fn row_is_appended_and_the_sums_follow() {
        let page = format!("x\n\n{HEAD}\n| --- |\n\n{SUM}0\n\ny\n");
        let page = appended(&page, "| abc | 1 | own, 3 nodes | 60 | 1,000,000 | 30 | 29 | 0 |").unwrap();
        let page = appended(&page, "| def | 2 | redis | 1,040 | 500 | 3 | 2 | 1 |").unwrap();
        assert!(page.starts_with("x\n\n| commit") && page.ends_with("\n\ny\n"), "{page}");
        let line = "All rows: 1,100 s, 1,000,500 operations, 33 faults (31 bitten), 1 violations: 0.10 % of the \
                    operations and 1.27 % of the time of the goal. Of these, our own service: 60 s, 1,000,000 \
                    operations, 30 faults.";
        assert!(page.contains(line), "{page}");
    }
}
