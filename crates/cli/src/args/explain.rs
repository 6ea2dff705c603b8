//! Arguments of `explain`.

use clap::Args;
use clap::builder::PossibleValuesParser;
use lockkeeper_hazard::STORIES;

/// `explain`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  lockkeeper explain                                   # lists the stories
  lockkeeper explain paused-holder                     # plays one
  lockkeeper explain paused-holder --fence enter       # the same, with a fence
  lockkeeper explain paused-holder --pause-for 5s      # the same, with a shorter pause
  lockkeeper explain --all                             # how each ends, without and with fences

The lock table, the client and the fence are the real ones; only time is virtual, so a play takes no time.
`http://127.0.0.1:5627/hazard` of a node shows the same as a picture.")]
pub struct Explain {
    /// Which story to play
    #[arg(value_name = "STORY", value_parser = PossibleValuesParser::new(STORIES.map(|story| story.name)),
          hide_possible_values = true)]
    pub story: Option<String>,
    /// Play all stories with every fence, and show how they end
    #[arg(long, conflicts_with = "story")]
    pub all: bool,
    /// Print the picture of all stories as a web page in one file
    #[arg(long, conflicts_with_all = ["all", "story", "json"])]
    pub html: bool,
    /// Print JSON: a line for each story
    #[arg(long)]
    pub json: bool,
    /// What to play it with
    #[command(flatten)]
    pub settings: ExplainSettings,
}

/// Changes of a story's settings, as their texts.
#[derive(Args, Debug)]
#[group(requires = "story")]
pub struct ExplainSettings {
    /// What the resource checks: `none`, `write` (the token of each write), `enter` (also before reading)
    #[arg(long, value_name = "FENCE")]
    pub fence: Option<String>,
    /// The lock service: `lockkeeper` or `redlock`
    #[arg(long)]
    pub service: Option<String>,
    /// The competitors of A: a `writer`, or two `readers`
    #[arg(long)]
    pub others: Option<String>,
    /// The ttl of the leases: 2s to 1m
    #[arg(long)]
    pub ttl: Option<String>,
    /// How long the lock stays closed after a session has expired
    #[arg(long, value_name = "TIME")]
    pub lock_delay: Option<String>,
    /// When a session expires whose client has closed its connection; 0s: after its ttl
    #[arg(long, value_name = "TIME")]
    pub linger: Option<String>,
    /// The time between reading and writing
    #[arg(long, value_name = "TIME")]
    pub work: Option<String>,
    /// Where A stands still: `never`, `before-read`, `before-work`, `before-check`, `before-write`
    #[arg(long, value_name = "POINT")]
    pub pause: Option<String>,
    /// For how long
    #[arg(long, value_name = "TIME")]
    pub pause_for: Option<String>,
    /// How much faster A's clock runs, in percent: -50 to 50
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub drift: Option<String>,
    /// From when A does not reach the lock service
    #[arg(long, value_name = "TIME")]
    pub cut_at: Option<String>,
    /// For how long
    #[arg(long, value_name = "TIME")]
    pub cut_for: Option<String>,
    /// How much longer A's first write is on its way
    #[arg(long, value_name = "TIME")]
    pub write_delay: Option<String>,
    /// Whether A is killed after it has sent its first write: `true` or `false`
    #[arg(long, value_name = "BOOL")]
    pub crash: Option<String>,
    /// When the clocks of three of five Redis servers are set forward
    #[arg(long, value_name = "TIME")]
    pub step_at: Option<String>,
    /// By how much
    #[arg(long, value_name = "TIME")]
    pub step: Option<String>,
}

impl ExplainSettings {
    /// The settings that were given, by their keys.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let Self {
            fence,
            service,
            others,
            ttl,
            lock_delay,
            linger,
            work,
            pause,
            pause_for,
            drift,
            cut_at,
            cut_for,
            write_delay,
            crash,
            step_at,
            step,
        } = self;
        let all = [
            ("fence", fence),
            ("service", service),
            ("others", others),
            ("ttl", ttl),
            ("lock-delay", lock_delay),
            ("linger", linger),
            ("work", work),
            ("pause", pause),
            ("pause-for", pause_for),
            ("drift", drift),
            ("cut-at", cut_at),
            ("cut-for", cut_for),
            ("write-delay", write_delay),
            ("crash", crash),
            ("step-at", step_at),
            ("step", step),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)))
    }
}
