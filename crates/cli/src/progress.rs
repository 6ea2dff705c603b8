//! A progress line on a terminal.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// A line on standard error, cut to the terminal's width. Cleared on drop.
pub(crate) struct ProgressLine(ProgressBar);

impl ProgressLine {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The template is constant and valid. If it were not, the line would have the default style.
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// `None` if standard error is no terminal.
    pub(crate) fn on_terminal() -> Option<Self> {
        stderr().is_terminal().then(Self::new)
    }

    pub(crate) fn show(&self, text: String) {
        self.0.set_message(output::printable(&text));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
