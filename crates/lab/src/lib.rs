//! Experiments on real servers: the classic mistakes with distributed locks, and the verdict on a client.
//!
//! `lockkeeper-lab conformance` gives any client a verdict for each promise: see `conformance/mod.rs`, and
//! `driver.rs` for the Rust library's driver.
//!
//! `lockkeeper-lab pitfalls` plays the mistakes: short programs that fail, each beside the right way.
//! docs/pitfalls.md is made from them.
//!
//! A [`Pitfall`] has two programs, the mistake and the right way, and one script that plays either of them:
//! it starts servers and actors (processes that run the program), injects the same fault at the same point,
//! and reads from the resource what was lost.
//!
//! Reading order: one file of `mistakes`, say `mistakes/no_fence.rs`; then `account.rs` and `naive.rs` (what
//! the programs share), `actor.rs` (an actor's side of the play), `scene.rs` (the script's side).
//!
//! - An outcome is read from the resource or the lock service, never from an actor.
//! - "For ever" needs a proof at the lock service (a key without a ttl, a dead holder that is still the
//!   owner), not only a wait.
//! - The programs use the library and the fences as users do, and start servers through `lockkeeper-rig`; a
//!   missing server is an error with its package's name. Plays with a node need a copy of `lockkeeper` beside
//!   this program.

mod account;
mod actor;
pub mod conformance;
mod driver;
mod mistakes;
mod naive;
mod node;
mod page;
mod scene;

use std::error::Error;
use std::future::Future;
use std::pin::Pin;

use lockkeeper_rig::Program;

pub use actor::act;
pub use driver::drive;
pub use mistakes::PITFALLS;
pub use page::markdown;
pub use scene::{Line, LineKind, play};

use actor::Actor;
use scene::Scene;

/// The result of a program or a script. An error means that the play itself failed, not that something was
/// lost.
pub type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Which of a pitfall's two programs the actors run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// The mistake.
    Wrong,
    /// The right way.
    Right,
}

/// What a play has led to, as read from the resource or the lock service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Something is lost, or no client can go on.
    Lost(String),
    /// Nothing is lost.
    Kept(String),
}

impl Verdict {
    /// The loss, or that nothing was lost.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Lost(text) | Self::Kept(text) => text,
        }
    }

    /// Whether something was lost.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

/// One mistake and its right way.
pub struct Pitfall {
    /// Its name on the command line, also in docs/pitfalls.md.
    pub name: &'static str,
    /// One line.
    pub title: &'static str,
    /// What goes wrong, and why.
    pub mistake: &'static str,
    /// What to do instead, and why that holds.
    pub remedy: &'static str,
    /// What it needs on this machine.
    pub needs: &'static [Program],
    /// The text of the file that has the programs and the script.
    source: &'static str,
    script: fn(&mut Scene<'_>) -> Result<Verdict>,
    wrong: ProgramFn,
    right: ProgramFn,
}

/// An actor's program.
type ProgramFn = for<'play> fn(&'play mut Actor) -> Pin<Box<dyn Future<Output = Result> + 'play>>;

impl Pitfall {
    /// The pitfall of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PITFALLS.iter().find(|pitfall| pitfall.name == name).copied()
    }

    /// The programs that this machine lacks.
    pub fn missing(&self) -> impl Iterator<Item = Program> {
        self.needs.iter().copied().filter(|program| lockkeeper_rig::find(program.name).is_none())
    }
}
