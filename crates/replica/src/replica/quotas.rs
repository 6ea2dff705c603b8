//! Quotas: limits on the table's content, for the sessions of one identity and for all sessions together.
//!
//! The leader checks an acquire, a longer value or a new session before it queues the command. It adds the
//! usage in the table and the usage of commands that are queued or proposed and not applied yet (*reserved*).
//! So the limits are exact although commands are pipelined, the log has no trace of refused commands, and
//! limits can be changed at any time without an agreement of the nodes.
//!
//! A closed hold counts for the identity whose session held it. Snapshots do not contain that identity, so
//! after a restart from a snapshot a closed hold counts only towards the limits of all sessions together. The
//! table's own limits (M1) hold independently. A repetition of a command that was queued before is not
//! checked: it changes nothing (R5), and its client must get the answer of the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockkeeper_core::{Command, OpenSession, Usage};

use super::Replica;

/// Limits and reservations, by identity.
#[derive(Default)]
pub(super) struct Quotas {
    all: Quota,
    /// The identities with open streams or with reservations.
    by_identity: BTreeMap<Box<str>, Quota>,
    /// The hashes of the secrets of sessions that are queued and not applied yet.
    opening: BTreeSet<[u8; 32]>,
}

/// How far a command that adds only its answer may exceed the limit of bytes. An identity at its limit must
/// still be able to change values and to downgrade, but not without bound, since answers are kept until they
/// are confirmed.
const ANSWER_SLACK: u64 = 1 << 20;

#[derive(Clone, Copy)]
struct Quota {
    most: Usage,
    reserved: Usage,
    streams: usize,
}

impl Default for Quota {
    fn default() -> Self {
        Self { most: Usage::UNLIMITED, reserved: Usage::default(), streams: 0 }
    }
}

/// The usage that a queued command reserves, and the identity for which it is reserved.
pub(super) struct Reservation {
    identity: Arc<str>,
    usage: Usage,
}

impl Quotas {
    pub(super) fn stream_opened(&mut self, identity: &str, most: Usage) {
        let quota = self.by_identity.entry(identity.into()).or_default();
        (quota.most, quota.streams) = (most, quota.streams + 1);
    }

    pub(super) fn stream_closed(&mut self, identity: &str) {
        if let Some(quota) = self.by_identity.get_mut(identity) {
            quota.streams = quota.streams.saturating_sub(1);
        }
        self.forget_if_unused(identity);
    }

    /// Sets the limits of a call's identity. Without streams they are forgotten with its last reservation.
    pub(super) fn called(&mut self, identity: &str, most: Usage) {
        if let Some(quota) = self.by_identity.get_mut(identity) {
            quota.most = most;
        } else if most != Usage::UNLIMITED {
            self.by_identity.insert(identity.into(), Quota { most, ..Quota::default() });
        }
    }

    /// Sets the limits of all sessions together, and of the identities that have streams.
    pub(super) fn set(&mut self, total: Usage, by_identity: Vec<(Box<str>, Usage)>) {
        self.all.most = total;
        for (identity, most) in by_identity {
            if let Some(quota) = self.by_identity.get_mut(&identity) {
                quota.most = most;
            }
        }
    }

    /// Reserves `wanted`; the error names the limit that does not allow it. `None`: there is no limit, so
    /// nothing is reserved. A limit that is set later does not count the commands that are queued at that
    /// time, until they are applied.
    fn reserve(
        &mut self,
        identity: &Arc<str>,
        used: Usage,
        used_by_all: Usage,
        wanted: Usage,
    ) -> Result<Option<Reservation>, String> {
        let own = self.by_identity.get(&**identity).copied().unwrap_or_default();
        if own.most == Usage::UNLIMITED && self.all.most == Usage::UNLIMITED {
            return Ok(None);
        }
        if let Some(Excess { what, most, has, more }) = exceeded(&own, used, wanted) {
            let who = if identity.is_empty() { "clients without an identity" } else { identity.as_ref() };
            return Err(format!(
                "quota: {who} may have {most} {what}, has {has}, and this needs {more} more; end some, or ask the service's \
                 operators for more"
            ));
        }
        if let Some(Excess { what, most, has, more }) = exceeded(&self.all, used_by_all, wanted) {
            return Err(format!(
                "quota: all clients together may have {most} {what}, have {has}, and this needs {more} more; try again later, \
                 or ask the service's operators for more"
            ));
        }
        let reserved = own.reserved.plus(wanted);
        match self.by_identity.get_mut(&**identity) {
            Some(own) => own.reserved = reserved,
            None => drop(self.by_identity.insert(identity.as_ref().into(), Quota { reserved, ..own })),
        }
        self.all.reserved = self.all.reserved.plus(wanted);
        Ok(Some(Reservation { identity: identity.clone(), usage: wanted }))
    }

    /// Releases a reservation: the table has applied or refused the command.
    pub(super) fn release(&mut self, reservation: &Reservation) {
        let Reservation { identity, usage } = reservation;
        self.all.reserved = self.all.reserved.minus(*usage);
        if let Some(quota) = self.by_identity.get_mut(&**identity) {
            quota.reserved = quota.reserved.minus(*usage);
        }
        self.forget_if_unused(identity);
    }

    /// Records that the opening of a session with this secret is queued.
    pub(super) fn session_queued(&mut self, secret_hash: [u8; 32]) {
        self.opening.insert(secret_hash);
    }

    /// Records that the opening of the session is applied.
    pub(super) fn session_applied(&mut self, secret_hash: &[u8; 32]) {
        self.opening.remove(secret_hash);
    }

    pub(super) fn is_opening(&self, secret_hash: &[u8; 32]) -> bool {
        self.opening.contains(secret_hash)
    }

    /// To be called when this node stops leading: its queued commands are dropped, and its streams end.
    pub(super) fn step_down(&mut self) {
        self.all.reserved = Usage::default();
        self.by_identity.clear();
        self.opening.clear();
    }

    pub(super) fn forget_if_unused(&mut self, identity: &str) {
        let is_unused = |quota: &Quota| quota.streams == 0 && quota.reserved == Usage::default();
        if self.by_identity.get(identity).is_some_and(is_unused) {
            self.by_identity.remove(identity);
        }
    }
}

/// A limit that would be exceeded.
struct Excess {
    what: &'static str,
    most: u64,
    has: u64,
    more: u64,
}

/// The first limit that would be exceeded.
fn exceeded(quota: &Quota, used: Usage, wanted: Usage) -> Option<Excess> {
    let most = match wanted == Usage::of_answer() {
        true => quota.most.plus(Usage { bytes: ANSWER_SLACK, ..Usage::default() }),
        false => quota.most,
    };
    let has = used.plus(quota.reserved).numbers();
    let each = has.into_iter().zip(wanted.numbers()).zip(most.numbers());
    each.map(|(((what, has), (_, more)), (_, most))| Excess { what, most, has, more })
        .find(|it| it.more > 0 && it.has.saturating_add(it.more) > it.most)
}

impl Replica {
    /// Reserves the usage that a session's command adds; the error says why that is not allowed. `None`:
    /// nothing is reserved, since the command adds nothing, is a repetition, or has no limit.
    pub(super) fn reserve(
        &mut self,
        identity: &Arc<str>,
        command: &Command,
        is_repetition: bool,
    ) -> Result<Option<Reservation>, String> {
        if is_repetition {
            return Ok(None);
        }
        let Some((session, wanted)) = self.table.usage_added(command) else { return Ok(None) };
        let used = self.table.usage_beside(session);
        let in_all = self.table.usage_in_all();
        match self.table.identity(session) {
            // A session that was opened without an identity counts towards the limits of clients without one.
            Some("") if !identity.is_empty() => self.quotas.reserve(&"".into(), used, in_all, wanted),
            _ => self.quotas.reserve(identity, used, in_all, wanted),
        }
    }

    /// As [`Replica::reserve`], for a new session.
    pub(super) fn reserve_session(
        &mut self,
        identity: &Arc<str>,
        open: &OpenSession,
    ) -> Result<Option<Reservation>, String> {
        if self.is_opened(&open.secret_hash) {
            return Ok(None);
        }
        let used = self.table.usage(&open.identity);
        let wanted = Usage::of_session(open);
        self.quotas.reserve(identity, used, self.table.usage_in_all(), wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Usage = Usage { requests: 3, ..Usage::UNLIMITED };
    const ONE: Usage = Usage { sessions: 0, requests: 1, waiters: 0, names: 1, bytes: 100 };

    #[test]
    fn what_is_reserved_counts_until_it_is_applied() {
        let mut quotas = Quotas::default();
        quotas.stream_opened("a", MOST);
        let nothing = Usage::default();
        let first = quotas.reserve(&"a".into(), nothing, nothing, ONE).unwrap().unwrap();
        let _second = quotas.reserve(&"a".into(), nothing, nothing, ONE).unwrap();
        let refusal = quotas.reserve(&"a".into(), ONE, ONE, ONE).map(|_| ()).unwrap_err();
        assert!(
            refusal.contains("a may have 3 holds and waiters, has 3, and this needs 1 more"),
            "{refusal}"
        );
        quotas.release(&first);
        assert!(quotas.reserve(&"a".into(), ONE, ONE, ONE).is_ok());
        assert!(quotas.reserve(&"b".into(), nothing, ONE, ONE).is_ok(), "another has limits of its own");
    }

    #[test]
    fn all_together_have_a_limit_too_and_it_may_be_changed() {
        let mut quotas = Quotas::default();
        quotas.set(Usage { bytes: 250, ..Usage::UNLIMITED }, Vec::new());
        let nothing = Usage::default();
        let _one = quotas.reserve(&"a".into(), nothing, nothing, ONE).unwrap();
        let _two = quotas.reserve(&"b".into(), nothing, nothing, ONE).unwrap();
        let refusal = quotas.reserve(&"c".into(), nothing, nothing, ONE).map(|_| ()).unwrap_err();
        assert!(refusal.contains("all clients together may have 250 bytes"), "{refusal}");
        quotas.set(Usage::UNLIMITED, Vec::new());
        assert!(quotas.reserve(&"c".into(), nothing, nothing, ONE).is_ok());
        quotas.stream_opened("c", MOST);
        assert!(quotas.reserve(&"c".into(), nothing, nothing, ONE).is_ok());
        quotas.set(Usage::UNLIMITED, vec![("c".into(), Usage { requests: 1, ..MOST })]);
        assert!(quotas.reserve(&"c".into(), nothing, nothing, ONE).is_err());
    }

    #[test]
    fn identities_without_streams_and_reservations_are_forgotten() {
        let mut quotas = Quotas::default();
        let nothing = Usage::default();
        quotas.stream_opened("a", MOST);
        let reserved = quotas.reserve(&"a".into(), nothing, nothing, ONE).unwrap().unwrap();
        quotas.stream_closed("a");
        assert_eq!(quotas.by_identity.len(), 1);
        quotas.release(&reserved);
        assert!(quotas.by_identity.is_empty());
        assert!(quotas.reserve(&"b".into(), nothing, nothing, Usage { names: u64::MAX, ..ONE }).is_ok());
        quotas.step_down();
        assert!(quotas.by_identity.is_empty());
    }
}
