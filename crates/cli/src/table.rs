//! Tables for people: a header, aligned columns, lines no wider than the terminal, and bad news in red.

use std::io::{IsTerminal, stdout};

use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, presets};

use crate::exit::Failure;
use crate::output;

/// Columns whose cells may be split over several lines in a narrow terminal: texts of any length. The others,
/// such as tokens, are copied by people.
const SPLIT: [&str; 4] = ["NAME", "OWNER", "NOTE", "STATE"];
/// Spaces before and behind a cell.
const PADDING: (u16, u16) = (0, 2);

/// A table that is printed on standard output.
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// A table with these column headers.
    pub(crate) fn new<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(header.map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
        // In a pipe or a file, each row is one line, whatever its length.
        table.set_content_arrangement(ContentArrangement::Disabled);
        for (title, column) in header.into_iter().zip(table.column_iter_mut()) {
            column.set_padding(PADDING);
            if !SPLIT.contains(&title) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        if stdout().is_terminal()
            && let Some((width, _)) = terminal_size::terminal_size()
        {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.0);
        }
        if !output::is_coloured() {
            table.force_no_tty();
        }
        Self(table)
    }

    /// Adds a row, with as many cells as there are headers.
    pub(crate) fn row<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        self.0.add_row(cells.map(|cell| output::printable(&cell)));
    }

    /// Adds a row about something that an operator should look at.
    pub(crate) fn bad_row<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        self.0.add_row(cells.map(|cell| Cell::new(output::printable(&cell)).fg(Color::Red)));
    }

    /// # Errors
    /// Standard output can't be written.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        self.0.lines().try_for_each(|line| output::page(line.trim_end()))
    }
}
