//! What a hold tells the client's history, if it writes one.

use std::sync::atomic::Ordering;

use lockkeeper_backend::BootInstant;
use lockkeeper_core::{LockName, ModeKind};

use super::HoldHandle;
use crate::recorder::{RecordedGrant, Recorder};

impl HoldHandle {
    /// The last moment up to `now` at which a guard counted on the hold.
    pub(super) fn claimed_until(&self, now: BootInstant) -> BootInstant {
        match self.loss_at(now) {
            Some(_) => BootInstant::from_nanos(self.hold.claimed_until.load(Ordering::SeqCst)).min(now),
            None => now,
        }
    }

    /// Writes the grant to the client's history; `false` if the hold is lost already.
    pub(crate) fn record(
        &mut self,
        recorder: &Recorder,
        names: &[LockName],
        (mode, subtree): (ModeKind, bool),
        asked: BootInstant,
    ) -> bool {
        let at = BootInstant::now();
        if self.loss_at(at).is_some() {
            return false;
        }
        let (permits, token, cached) =
            (&self.granted.permits[..], self.granted.token, self.section.is_some());
        // At the services of others a request may queue anew under its number: after a lost connection.
        let keeps_place = matches!(self.capabilities().backend, "lockkeeper" | "memory");
        let waited = self.hold.reports().queued.filter(|_| keeps_place && !cached);
        let queued = waited.map(|(_, at)| at);
        let grant = RecordedGrant { names, mode, subtree, permits, token, cached, asked, queued };
        self.recorded = Some(recorder.granted(at, grant));
        true
    }

    /// Writes to the client's history that others may share the hold, unless it is lost already.
    pub(crate) fn record_downgrade(&self) {
        let now = BootInstant::now();
        if let Some(recorded) = &self.recorded
            && self.loss_at(now).is_none()
        {
            recorded.downgrades(now);
        }
    }
}
