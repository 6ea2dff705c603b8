//! The usage of the table by the sessions of one identity. Derived from the sessions and requests, so it is
//! not in snapshots.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use slab::Slab;

use super::Table;
use crate::command::{Acquire, OpenSession};
use crate::table::request::base_bytes;
use crate::table::session::{KEPT_BYTES, SESSION_BYTES};

/// The usage of the table, by one identity or by all. As a limit, each field is a maximum.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Live sessions.
    pub sessions: u64,
    /// Holds, including closed ones, and waiters together: a waiter becomes a hold without a new request.
    pub requests: u64,
    /// Waiters.
    pub waiters: u64,
    /// Names of holds and waiters; a name counts once for each hold or waiter.
    pub names: u64,
    /// The size of the sessions and requests, as measured by [`Table::bytes`].
    pub bytes: u64,
}

impl Usage {
    /// The limit that allows everything.
    pub const UNLIMITED: Self =
        Self { sessions: u64::MAX, requests: u64::MAX, waiters: u64::MAX, names: u64::MAX, bytes: u64::MAX };

    /// The usage that an acquire adds if it is granted or queued.
    #[must_use]
    pub fn of_acquire(acquire: &Acquire) -> Self {
        let content = acquire.value.len() + acquire.meta.len() + size_of_val(&*acquire.holding);
        let bytes = u64::from(base_bytes(&acquire.names)) + content as u64;
        let waiters = u64::from(acquire.if_busy.may_wait());
        Self { sessions: 0, requests: 1, waiters, names: acquire.names.len() as u64, bytes }
    }

    /// The usage that a new session adds.
    #[must_use]
    pub fn of_session(open: &OpenSession) -> Self {
        let bytes = SESSION_BYTES + (open.label.len() + open.identity.len()) as u64;
        Self { sessions: 1, bytes, ..Self::default() }
    }

    /// The usage that an answer adds, which is kept until the client confirms it (R3).
    #[must_use]
    pub fn of_answer() -> Self {
        Self { bytes: KEPT_BYTES, ..Self::default() }
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// The difference; 0 instead of less.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    fn with(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            sessions: of(self.sessions, other.sessions),
            requests: of(self.requests, other.requests),
            waiters: of(self.waiters, other.waiters),
            names: of(self.names, other.names),
            bytes: of(self.bytes, other.bytes),
        }
    }

    /// Each field with its name, for people.
    #[must_use]
    pub fn numbers(self) -> [(&'static str, u64); 5] {
        [
            ("sessions", self.sessions),
            ("holds and waiters", self.requests),
            ("waiters", self.waiters),
            ("names in holds and waiters", self.names),
            ("bytes of sessions, holds and waiters", self.bytes),
        ]
    }
}

/// Index of an identity that has sessions or closed holds. Reused after the last of them is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AccountId(NonZeroU32);

impl AccountId {
    /// The account of requests whose session is not restored yet, and of restored closed holds: a snapshot
    /// does not contain the identities of these.
    pub(super) const UNKNOWN: Self = Self(NonZeroU32::MIN);

    fn of_entry(entry: usize) -> Self {
        // A table has at most 2^20 sessions, a few more that are ending, and some 10^7 closed holds.
        Self(NonZeroU32::MIN.saturating_add(entry as u32 + 1))
    }

    /// The index of the account in the list; `None` for [`AccountId::UNKNOWN`].
    fn entry(self) -> Option<usize> {
        self.index().checked_sub(1)
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The identities that have sessions or closed holds, with the usage of their sessions, without requests.
#[derive(Default)]
pub(super) struct Accounts {
    by_identity: BTreeMap<Box<str>, AccountId>,
    accounts: Slab<Account>,
}

struct Account {
    identity: Box<str>,
    /// Sessions, live and ending, and closed holds.
    entries: u64,
    usage: Usage,
}

impl Accounts {
    /// Adds a session. `live`: whether the session has not ended.
    pub(super) fn add(&mut self, identity: &str, bytes: u64, live: bool) -> AccountId {
        let id = match self.by_identity.get(identity) {
            Some(&id) => id,
            None => {
                let account = Account { identity: identity.into(), entries: 0, usage: Usage::default() };
                let id = AccountId::of_entry(self.accounts.insert(account));
                self.by_identity.insert(identity.into(), id);
                id
            }
        };
        if let Some(account) = self.get_mut(id) {
            account.entries += 1;
            account.usage.sessions += u64::from(live);
            account.usage.bytes += bytes;
        }
        id
    }

    /// To be called when a hold of the account becomes a closed hold.
    pub(super) fn keep(&mut self, id: AccountId) {
        if let Some(account) = self.get_mut(id) {
            account.entries += 1;
        }
    }

    /// To be called when the size of a session changes.
    pub(super) fn resize(&mut self, id: AccountId, before: u64, after: u64) {
        if let Some(account) = self.get_mut(id) {
            account.usage.bytes = account.usage.bytes - before + after;
        }
    }

    /// To be called when a live session has ended; the session remains in the table.
    pub(super) fn ended(&mut self, id: AccountId) {
        if let Some(account) = self.get_mut(id) {
            account.usage.sessions -= 1;
        }
    }

    /// To be called when an ended session, or a closed hold, is removed from the table.
    pub(super) fn remove(&mut self, id: AccountId, bytes: u64) {
        let (Some(entry), Some(account)) = (id.entry(), self.get_mut(id)) else { return };
        account.entries -= 1;
        account.usage.bytes -= bytes;
        if account.entries == 0 {
            let identity = self.accounts.remove(entry).identity;
            self.by_identity.remove(&identity);
        }
    }

    fn get_mut(&mut self, id: AccountId) -> Option<&mut Account> {
        self.accounts.get_mut(id.entry()?)
    }

    fn usage(&self, id: AccountId) -> Usage {
        let account = id.entry().and_then(|entry| self.accounts.get(entry));
        account.map(|account| account.usage).unwrap_or_default()
    }
}

/// The usage by the requests of each account.
#[derive(Default)]
pub(super) struct RequestUsage(Vec<Usage>);

impl RequestUsage {
    pub(super) fn add(&mut self, id: AccountId, usage: Usage) {
        let index = id.index();
        if index >= self.0.len() {
            self.0.resize(index + 1, Usage::default());
        }
        self.0[index] = self.0[index].plus(usage);
    }

    pub(super) fn subtract(&mut self, id: AccountId, usage: Usage) {
        if let Some(sum) = self.0.get_mut(id.index()) {
            *sum = sum.minus(usage);
        }
    }

    fn get(&self, id: AccountId) -> Usage {
        self.0.get(id.index()).copied().unwrap_or_default()
    }
}

impl Table {
    /// The usage by the sessions of an identity; the empty identity stands for unauthenticated clients.
    /// Closed holds count for the identity whose session held them, as requests, names and bytes. A snapshot
    /// does not contain that identity, so the closed holds of a restored table are in [`Table::usage_in_all`]
    /// only.
    #[must_use]
    pub fn usage(&self, identity: &str) -> Usage {
        let id = self.sessions.accounts().by_identity.get(identity);
        id.map_or_else(Usage::default, |&id| self.usage_of_account(id))
    }

    /// The usage by all sessions of the identity to which this session belongs.
    #[must_use]
    pub fn usage_beside(&self, session: crate::SessionId) -> Usage {
        let session = self.sessions.get(session);
        session.map_or_else(Usage::default, |session| self.usage_of_account(session.account))
    }

    /// The usage of each identity that has any.
    pub fn usages(&self) -> impl Iterator<Item = (&str, Usage)> {
        let accounts = self.sessions.accounts().by_identity.iter();
        accounts.map(|(identity, &id)| (&**identity, self.usage_of_account(id)))
    }

    /// The usage by all identities together.
    #[must_use]
    pub fn usage_in_all(&self) -> Usage {
        let sessions = self.sessions.len() as u64;
        Usage { sessions, bytes: self.bytes(), ..self.requests.usage_in_all() }
    }

    fn usage_of_account(&self, id: AccountId) -> Usage {
        self.sessions.accounts().usage(id).plus(self.requests.usage().get(id))
    }
}
