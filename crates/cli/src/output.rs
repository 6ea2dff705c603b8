//! Output: text or JSON data on standard output only, messages on standard error. Help texts and tables are
//! coloured on a terminal, unless `NO_COLOR` is set.

use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lockkeeper::{HolderInfo, HolderState};
use serde::Serialize;

use crate::exit::{Failure, INTERNAL, IO};

/// Prints a message of one line on standard error. A write error is ignored: it must not stop a job.
pub fn say(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "lockkeeper: {}", printable(&text.to_string()));
}

impl Failure {
    /// Prints the message on standard error, as JSON if data are printed as JSON too, and returns the exit
    /// code.
    #[must_use]
    pub fn report(&self, as_json: bool) -> u8 {
        match self.message.as_str() {
            "" => {}
            message if as_json => {
                let error = serde_json::json!({ "error": message, "code": self.code });
                // A write error is ignored: there is nowhere to report it.
                let _ = writeln!(std::io::stderr().lock(), "{error}");
            }
            message => say(message),
        }
        self.code
    }
}

/// The text on one line that shows what it contains: labels, values, reasons and names are chosen by other
/// clients, and could otherwise forge lines, reverse their direction, or command the terminal. Control,
/// format and separator characters become `\n`, `\u{202e}` and so on.
#[must_use]
pub fn printable(text: &str) -> String {
    let shown = ['\\', '"', '\''];
    let pieces = text.split_inclusive(shown).map(|piece| match piece.strip_suffix(shown) {
        Some(before) => format!("{}{}", before.escape_debug(), &piece[before.len()..]),
        None => piece.escape_debug().to_string(),
    });
    pieces.collect()
}

/// Whether standard output may be coloured: it is a terminal, and `NO_COLOR` is not set or empty.
pub(crate) fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The text in a colour or weight of the terminal.
pub(crate) fn painted(code: &str, text: &str) -> String {
    if is_coloured() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Prints one line, as [`printable`]; on a terminal, as [`prose`]. A closed pipe ends the process with exit
/// code 0, without a message.
///
/// # Errors
/// Standard output can't be written.
pub fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    prose(printable(text.as_ref()), "  ")
}

/// Like [`line()`], but prints the text unescaped: it may have several lines and colours. Not for text from
/// other clients.
///
/// # Errors
/// As [`line()`].
pub fn page(text: impl AsRef<str>) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_ref().as_bytes()).and_then(|()| out.write_all(b"\n"));
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::new(IO, format!("standard output can't be written: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Like [`page`], but on a terminal, each line is wrapped at its width; what follows is indented by `indent`.
///
/// # Errors
/// As [`line()`].
pub fn prose(text: impl AsRef<str>, indent: &str) -> Result<(), Failure> {
    match terminal_size::terminal_size_of(std::io::stdout()) {
        Some((width, _)) => page(wrapped(text.as_ref(), width.0.into(), indent)),
        None => page(text),
    }
}

/// Wraps each line; the lines that follow get its own indent and `indent`. A word longer than the width stays
/// whole, so that a URL can be copied.
fn wrapped(text: &str, width: usize, indent: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let own = &line[..line.len() - line.trim_start().len()];
        let indent = format!("{own}{indent}");
        let style = textwrap::Options::new(width).subsequent_indent(&indent).break_words(false);
        textwrap::fill(line, style.word_splitter(textwrap::WordSplitter::NoHyphenation))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Replaces a file at once: whoever reads it sees the old or the new text.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".lockkeeper-")
        // The mode that a shell redirection would use (0666 less the umask), instead of tempfile's 0600.
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Prints one JSON document on a line.
///
/// # Errors
/// As [`line()`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(INTERNAL, format!("the output can't be written as JSON: {error}")))?;
    page(text)
}

/// A duration for display: whole seconds from 10 s, tenths of a second from 1 s, else milliseconds.
#[must_use]
pub fn human(duration: Duration) -> String {
    let tenths = duration.as_millis() / 100;
    match tenths {
        0..10 => humantime::format_duration(Duration::from_millis(duration.as_millis() as u64)).to_string(),
        10..100 if !tenths.is_multiple_of(10) => format!("{}.{}s", tenths / 10, tenths % 10),
        _ => humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string(),
    }
}

/// A client: the label that it chose, and the identity that the service authenticated.
#[must_use]
pub fn client(label: &str, identity: &str) -> String {
    if identity.is_empty() { label.to_owned() } else { format!("{label} ({identity})") }
}

/// What a hold covers: `exclusive`, `permit (slot 2)`, `exclusive with everything below`.
#[must_use]
pub fn mode_text(holder: &HolderInfo) -> String {
    let mut text = holder.mode.to_string();
    if let Some(slot) = holder.slot {
        text += &format!(" (slot {slot})");
    }
    if holder.subtree {
        text += " with everything below";
    }
    text
}

/// The unusual state of a hold; `None` if it is simply held.
#[must_use]
pub fn state_text(holder: &HolderInfo) -> Option<String> {
    match &holder.state {
        HolderState::Revoked { reason, by } => Some(format!("being broken by {by}: {reason}")),
        HolderState::Closed { left } => Some(format!("over, closed for another {}", human(*left))),
        _ if holder.recalled => Some("cached, recalled".to_owned()),
        _ => holder.cached.then(|| "cached".to_owned()),
    }
}

/// Whether the text contains `words` as whole words. `is_part`: whether a character is a part of a word.
pub(crate) fn contains_words(text: &str, words: &str, is_part: impl Fn(char) -> bool) -> bool {
    let ends_at = |at: usize| {
        !text[..at].chars().next_back().is_some_and(&is_part)
            && !text[at + words.len()..].chars().next().is_some_and(&is_part)
    };
    !words.is_empty() && text.match_indices(words).any(|(at, _)| ends_at(at))
}

/// When a hold or a wait began: ` (since 2026-11-28T03:12:09Z)`.
#[must_use]
pub fn since_text(since: SystemTime) -> String {
    format!(" (since {})", humantime::format_rfc3339_seconds(since))
}

/// A hold on one line: `token 7, exclusive, held by x, for 5s`.
#[must_use]
pub fn holder_text(holder: &HolderInfo) -> String {
    let mut text = holder.token.map(|token| format!("token {token}, ")).unwrap_or_default();
    text += &mode_text(holder);
    if !matches!(holder.state, HolderState::Closed { .. }) {
        text += &format!(", held by {}", client(&holder.label, &holder.identity));
        if let Some(held) = holder.held_for {
            text += &format!(", for {}", human(held));
        }
        if let Some(since) = holder.since {
            text += &since_text(since);
        }
    }
    if let Some(state) = state_text(holder) {
        text += &format!(", {state}");
    }
    for (key, value) in &holder.meta {
        text += &format!(", {key}={value}");
    }
    if !holder.value.is_empty() {
        text += &format!(", value {:?}", String::from_utf8_lossy(&holder.value));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{printable, wrapped};

    #[test]
    fn prose_is_wrapped_between_words_below_its_indent() {
        let text = "warning: a key is readable\n\n  ttl 30s: longer than its pauses\nsee https://example.org/a-long-one";
        assert_eq!(
            wrapped(text, 20, "  "),
            "warning: a key is\n  readable\n\n  ttl 30s: longer\n    than its pauses\nsee\n  https://example.org/a-long-one"
        );
    }

    #[test]
    fn texts_of_others_stay_on_their_line_and_command_no_terminal() {
        for (text, shown) in [
            (
                "orders/42: \"a\\b\" it's ours, grün, 注文, e\u{301}",
                "orders/42: \"a\\b\" it's ours, grün, 注文, e\u{301}",
            ),
            ("a\nlockkeeper: done", "a\\nlockkeeper: done"),
            ("\x1b[2J\x07\t\r", "\\u{1b}[2J\\u{7}\\t\\r"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("a\u{2028}b\u{2029}c\u{85}d", "a\\u{2028}b\\u{2029}c\\u{85}d"),
            ("\u{202e}txt.exe\u{2066}\u{200f}", "\\u{202e}txt.exe\\u{2066}\\u{200f}"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }
}
