//! Waiting for a condition, with a deadline.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Far longer than any wait in a test takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Polls `ask` until it returns `Ok`; after [`PATIENCE`] returns the last error.
pub(crate) fn wait(mut ask: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() >= until => {
                return Err(format!("{why}, still after {} s", PATIENCE.as_secs()));
            }
            Err(_) => sleep(LOOK_EVERY),
        }
    }
}
