//! The one line that is shown while `run` waits on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line on stderr, cut to the terminal's width. Cleared when it is dropped.
pub(super) struct Line(ProgressBar);

impl Line {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        // The template is ours and legal; if it weren't, the default one would do.
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(super) fn show(&self, text: String) {
        self.0.set_message(text);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
