//! The progress line that is shown on a terminal while `run` waits.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line on standard error, cut to the terminal's width. Cleared on drop.
pub(super) struct ProgressLine(ProgressBar);

impl ProgressLine {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The template is constant and valid. If it were not, the line would have the default style.
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(super) fn show(&self, text: String) {
        self.0.set_message(text);
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
