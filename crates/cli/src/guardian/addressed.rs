//! Variables that systemd addresses to one process by its id: LISTEN_PID (socket activation) and
//! WATCHDOG_PID. They name the wrapper, which systemd has started; the command must find its own id there.

use std::ffi::{CStr, CString};

use nix::unistd::Pid;

const NAMES: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];
/// Longer than any process id with its NUL.
const PLACEHOLDER: &str = "000000000000";

/// The values to overwrite once the command's id is known, as addresses in this process's environment.
pub(crate) struct Addressed(Vec<usize>);

impl Addressed {
    /// Prepares the variables of this process's environment that name `wrapper`.
    ///
    /// # Safety
    /// The process must have one thread, and change its environment no more until the command has started.
    pub(crate) unsafe fn of(wrapper: Pid) -> Self {
        let wrapper = wrapper.to_string();
        let ours = NAMES.into_iter().filter(|name| std::env::var(name).is_ok_and(|pid| pid == wrapper));
        let ours: Vec<_> = ours.collect();
        for name in &ours {
            // SAFETY: there is one thread.
            unsafe { std::env::set_var(name, PLACEHOLDER) };
            if *name == "LISTEN_PID" {
                // This variable names the same process by an id of its pidfd. SAFETY: there is one thread.
                unsafe { std::env::remove_var("LISTEN_PIDFDID") };
            }
        }
        let places = ours.into_iter().filter_map(|name| CString::new(name).ok());
        // SAFETY: there is one thread.
        Self(places.map(|name| unsafe { libc::getenv(name.as_ptr()) } as usize).collect())
    }

    /// Writes the id of the calling process, a forked child. Safe between fork and exec: it allocates
    /// nothing.
    pub(crate) fn name_this_process(&self) {
        let mut digits = [0u8; PLACEHOLDER.len() + 1];
        let mut rest = std::process::id();
        let mut start = digits.len() - 1;
        while rest > 0 {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let text = CStr::from_bytes_until_nul(&digits[start..]).unwrap_or_default().to_bytes_with_nul();
        for place in self.0.iter().filter(|place| **place != 0) {
            // SAFETY: `text` is no longer than the placeholder at `place`, and a forked child has no other
            // thread.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), *place as *mut u8, text.len()) };
        }
    }
}
