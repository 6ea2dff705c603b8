//! The text of a line of the log.

use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use crate::output::contains_words;

/// Writes the message, and those fields whose values the message does not contain: they are fields for
/// programs that read the log as JSON, and words for people.
pub(super) struct TextFields;

impl<'writer> FormatFields<'writer> for TextFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = TextLine::default();
        fields.record(&mut line);
        writer.write_str(&line.text())
    }
}

#[derive(Default)]
struct TextLine {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Visit for TextLine {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // A control character could end the line, or change the terminal.
            for char in format!("{value:?}").chars() {
                if char.is_control() {
                    self.message.extend(char.escape_default())
                } else {
                    self.message.push(char)
                }
            }
        } else {
            self.fields.push((field.name(), format!("{value:?}")));
        }
    }
}

impl TextLine {
    fn text(self) -> String {
        let Self { message: mut text, fields } = self;
        let unsaid: Vec<_> = fields.into_iter().filter(|(_, value)| !contains(&text, value)).collect();
        for (name, value) in unsaid {
            // Writing to a string never fails.
            let _ = write!(text, "{}{name}={value}", if text.is_empty() { "" } else { " " });
        }
        text
    }
}

/// Whether the text contains the value as a word of its own.
fn contains(text: &str, value: &str) -> bool {
    contains_words(text, value.trim_matches('"'), char::is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_nothing_twice_and_leaves_nothing_out() {
        let text = |message: &str, fields: &[(&'static str, &str)]| {
            let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            TextLine { message: message.to_owned(), fields }.text()
        };
        assert_eq!(
            text("node 1 leads, term 12", &[("term", "12"), ("leader", "1")]),
            "node 1 leads, term 12"
        );
        assert_eq!(text("node 12 leads", &[("term", "1")]), "node 12 leads term=1");
        assert_eq!(text("refused", &[("address", "\"127.0.0.1\"")]), "refused address=\"127.0.0.1\"");
        assert_eq!(text("at 127.0.0.1:7", &[("address", "127.0.0.1:7")]), "at 127.0.0.1:7");
        assert_eq!(text("", &[("empty", "\"\"")]), "empty=\"\"");
    }
}
