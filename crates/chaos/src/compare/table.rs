//! The table, for terminals and for the page.

use std::fs;
use std::time::Duration;

use super::rows::{ComparedRow, ROWS};
use super::sums::RowSums;
use crate::Result;

const PAGE: &str = "docs/choosing.md";
const BEGIN: &str = "<!-- made by cargo xtask chaos compare -->\n";
const END: &str = "<!-- end of the comparison -->";
const HEAD: &str = "\
| service | client | grants | faults | overlaps | lost, unfenced | lost, check on writes | lost, `enter` | pause after a client's fault | after a server's | `--row` |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

type Played = (&'static ComparedRow, RowSums);

/// A row.
pub(super) fn line(row: &ComparedRow, sums: &RowSums) -> String {
    let lost = |index: usize| match (sums.lost[index], row.has_token) {
        (Some(lost), _) => lost.to_string(),
        (None, false) => "no token".to_owned(),
        (None, true) => "not used".to_owned(),
    };
    let cells = [
        row.service.to_owned(),
        row.shown.to_owned(),
        sums.grants.to_string(),
        sums.faults.to_string(),
        sums.overlaps.to_string(),
        lost(0),
        lost(1),
        lost(2),
        pause(&sums.after_client),
        pause(&sums.after_server),
        format!("`{}`", row.name),
    ];
    format!("| {} |", cells.join(" | "))
}

/// Median and maximum of sorted pauses.
fn pause(sorted: &[Duration]) -> String {
    let seconds = |it: Duration| format!("{:.1} s", it.as_secs_f64());
    match (sorted.get(sorted.len() / 2), sorted.last()) {
        (Some(median), Some(longest)) => format!("{}, {}", seconds(*median), seconds(*longest)),
        _ => "–".to_owned(),
    }
}

/// Rows below their head.
pub(super) fn table(played: &[Played]) -> String {
    let lines: Vec<_> = played.iter().map(|(row, sums)| line(row, sums)).collect();
    format!("{HEAD}{}", lines.join("\n"))
}

/// Replaces these rows on the page; the other rows stay.
pub(super) fn record(played: &[Played]) -> Result {
    let page = fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    let lines: Vec<_> = played.iter().map(|(row, sums)| (row.name, line(row, sums))).collect();
    Ok(fs::write(PAGE, recorded(&page, &lines)?)?)
}

fn recorded(page: &str, lines: &[(&str, String)]) -> Result<String> {
    let begin = page.find(BEGIN).ok_or_else(|| format!("{PAGE} has no line {BEGIN}"))? + BEGIN.len();
    let end = page[begin..].find(END).ok_or_else(|| format!("{PAGE} has no line {END}"))? + begin;
    let named = |line: &str, name: &str| line.ends_with(&format!("| `{name}` |"));
    let row = |name: &str| {
        let new = lines.iter().find(|(other, _)| *other == name).map(|(_, line)| line.clone());
        new.or_else(|| page[begin..end].lines().find(|line| named(line, name)).map(str::to_owned))
    };
    let rows = ROWS.iter().filter_map(|it| row(it.name)).map(|line| line + "\n");
    Ok(format!("{}{HEAD}{}{}", &page[..begin], rows.collect::<String>(), &page[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::rows::rows;

    #[test]
    fn a_row_is_replaced_and_the_others_stay_in_their_order() {
        let page = format!("x\n{BEGIN}{HEAD}| old | `etcd-ours` |\n| kept | `own-3` |\n{END}\ny\n");
        let lines = [("etcd-ours", "| new | `etcd-ours` |".into()), ("etcd-go", "| go | `etcd-go` |".into())];
        let page = recorded(&page, &lines).unwrap();
        let rows = "| go | `etcd-go` |\n| new | `etcd-ours` |\n| kept | `own-3` |\n";
        assert_eq!(page, format!("x\n{BEGIN}{HEAD}{rows}{END}\ny\n"));
    }

    #[test]
    fn a_row_without_a_token_says_so() {
        let row = rows(&["redis-py".into()]).unwrap()[0];
        let ms = |all: &[u64]| all.iter().map(|it| Duration::from_millis(*it)).collect();
        let sums = RowSums {
            grants: 9,
            faults: 3,
            overlaps: 2,
            lost: [Some(4), None, None],
            after_client: ms(&[100, 1500, 2300]),
            after_server: Vec::new(),
            has_overlap: true,
        };
        let expected =
            "| Redis | redis-py | 9 | 3 | 2 | 4 | no token | no token | 1.5 s, 2.3 s | – | `redis-py` |";
        assert_eq!(line(row, &sums), expected);
    }
}
