//! Data on standard output, messages on standard error; colours on a terminal, unless `NO_COLOR` is set.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};

use crate::{LabError, exit};

/// Prints a message on standard error. A write error is ignored: there is nowhere to report it.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(stderr().lock(), "{text}");
}

/// Prints a line. A closed pipe ends the process with exit code 0, without a message.
pub(crate) fn line(text: impl Display) -> Result<(), LabError> {
    let mut out = stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(LabError::new(exit::IO, format!("standard output can't be written: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints a paragraph; on a terminal, wrapped at its width, below this indent.
pub(crate) fn prose(text: &str, indent: &str) -> Result<(), LabError> {
    match terminal_size::terminal_size_of(stdout()) {
        Some((width, _)) => {
            let style = textwrap::Options::new(width.0.into()).subsequent_indent(indent).break_words(false);
            line(textwrap::fill(text, style.word_splitter(textwrap::WordSplitter::NoHyphenation)))
        }
        None => line(text),
    }
}

/// The text in a colour or weight of the terminal.
pub(crate) fn painted(code: &str, text: &str) -> String {
    let is_coloured =
        stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if is_coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Prints rows in columns as wide as their widest cells; the first row is the header.
pub(crate) fn columns<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> Result<(), LabError> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
