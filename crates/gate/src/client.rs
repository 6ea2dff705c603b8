//! A client's connection: where it comes from, and whether it has requests in progress.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::shares::Share;

/// A client's connection.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub(crate) address: IpAddr,
    pub(crate) is_tls: bool,
    activity: Mutex<Activity>,
}

#[derive(Debug)]
struct Activity {
    in_progress: usize,
    /// When the last request has ended.
    since: Instant,
}

/// A request in progress, and its share of all. It lasts until the connection has taken the last part of the
/// response.
#[derive(Debug)]
pub(crate) struct InProgress {
    client: Arc<ClientConnection>,
    _share: Share,
}

impl ClientConnection {
    pub(crate) fn new(address: IpAddr, is_tls: bool) -> Arc<Self> {
        let activity = Mutex::new(Activity { in_progress: 0, since: Instant::now() });
        Arc::new(Self { address, is_tls, activity })
    }

    pub(crate) fn begin(self: &Arc<Self>, share: Share) -> InProgress {
        self.activity().in_progress += 1;
        InProgress { client: Arc::clone(self), _share: share }
    }

    /// Returns once no request has been in progress for this time from now on.
    pub(crate) async fn idle_for(&self, time: Duration) {
        let begun = Instant::now();
        loop {
            let idle_at = {
                let activity = self.activity();
                let since = if activity.in_progress > 0 { Instant::now() } else { activity.since.max(begun) };
                since + time
            };
            if idle_at <= Instant::now() {
                return;
            }
            sleep_until(idle_at).await;
        }
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut activity = self.client.activity();
        activity.in_progress -= 1;
        activity.since = Instant::now();
    }
}
