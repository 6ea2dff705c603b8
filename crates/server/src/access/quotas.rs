//! Quotas: how much one caller, and all callers together, may have and ask for.
//!
//! They stand in the file of permissions:
//!
//! ```toml
//! [[quota]]
//! who = ["group:shop", "alice"]     # each of them for itself; the first entry that names a caller counts
//! sessions = 100
//! requests = 10_000                 # holds, also closed ones, and waiters together
//! waiters = 1_000                   # and acquires that may have to wait, until it is known
//! names = 20_000                    # of all holds and waiters
//! bytes = 10_000_000                # of sessions, holds and waiters in memory
//! requests-per-second = 500         # acquires, changes of values and modes, new sessions, calls; never keep-alives or releases
//!
//! [total]                           # all callers together
//! bytes = 1_000_000_000
//! ```

use std::num::NonZeroU32;

use lockkeeper_core::{Usage, limits};
use serde::Deserialize;

use super::identity::Identity;

/// The limits that a `[[quota]]` sets; `None`: the default applies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QuotaFields {
    sessions: Option<u64>,
    requests: Option<u64>,
    waiters: Option<u64>,
    names: Option<u64>,
    bytes: Option<u64>,
}

impl QuotaFields {
    pub(super) fn or(self, default: Usage) -> Usage {
        Usage {
            sessions: self.sessions.unwrap_or(default.sessions),
            requests: self.requests.unwrap_or(default.requests),
            waiters: self.waiters.unwrap_or(default.waiters),
            names: self.names.unwrap_or(default.names),
            bytes: self.bytes.unwrap_or(default.bytes),
        }
    }
}

/// A `[[quota]]` entry of the permissions file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct QuotaEntry {
    who: Vec<String>,
    sessions: Option<u64>,
    requests: Option<u64>,
    waiters: Option<u64>,
    names: Option<u64>,
    bytes: Option<u64>,
    requests_per_second: Option<NonZeroU32>,
}

/// A validated `[[quota]]`; the names in `who` are not validated here.
pub(super) struct QuotaRule {
    line: usize,
    pub(super) who: Vec<String>,
    most: QuotaFields,
    requests_per_second: Option<NonZeroU32>,
}

impl QuotaRule {
    pub(super) fn new(line: usize, entry: QuotaEntry) -> Result<Self, String> {
        let QuotaEntry { who, sessions, requests, waiters, names, bytes, requests_per_second } = entry;
        let most = QuotaFields { sessions, requests, waiters, names, bytes };
        if who.is_empty() || (most == QuotaFields::default() && requests_per_second.is_none()) {
            return Err(
                "a quota needs `who` and a limit: `sessions`, `requests`, `waiters`, `names`, `bytes` or \
                 `requests-per-second`"
                    .to_owned(),
            );
        }
        Ok(Self { line, who, most, requests_per_second })
    }

    pub(super) fn quota(&self, caller: &Identity) -> Quota {
        let &Self { line, most, requests_per_second, .. } = self;
        Quota { line: Some(line), most: most.or(default_of(caller)), requests_per_second }
    }
}

/// A caller's limits in the table by default: half of the table's own limits. Anonymous callers together may
/// use the whole table, since they can't be told apart.
pub(super) fn default_of(caller: &Identity) -> Usage {
    match *caller == Identity::ANONYMOUS {
        true => Usage::UNLIMITED,
        false => Usage {
            sessions: limits::SESSIONS_MAX as u64 / 2,
            bytes: limits::TABLE_BYTES_MAX / 2,
            ..Usage::UNLIMITED
        },
    }
}

/// The quota of one caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Quota {
    /// The line of the `[[quota]]` that applies, from 1; `None`: the default.
    pub line: Option<usize>,
    /// The limits on all sessions of the caller together.
    pub most: Usage,
    /// The limit on requests per second, and on requests at once; `None`: unlimited.
    pub requests_per_second: Option<NonZeroU32>,
}

impl Quota {
    pub(super) fn default_of(caller: &Identity) -> Self {
        Self { line: None, most: default_of(caller), requests_per_second: None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Permissions;
    use super::*;

    #[test]
    fn known_callers_may_have_half_of_the_table_by_default() {
        let known = default_of(&Identity::new("alice").unwrap());
        assert_eq!((known.sessions, known.requests), (1 << 19, u64::MAX));
        assert_eq!(default_of(&Identity::ANONYMOUS), Usage::UNLIMITED);
    }

    #[test]
    fn first_quota_that_names_a_caller_counts_and_the_rest_is_the_default() {
        let file = "[[quota]]\nwho = [\"alice\"]\nrequests = 7\nrequests-per-second = 9\n\n[[quota]]\nwho = [\"*\"]\n\
                    sessions = 1\nbytes = 5\n\n[total]\nnames = 3\n";
        let permissions = Permissions::parse(file).unwrap();
        let quota = |who: &str| permissions.of(&Identity::new(who).unwrap()).quota();
        let alice = quota("alice");
        assert_eq!((alice.line, alice.most.requests, alice.most.sessions), (Some(1), 7, 1 << 19));
        assert_eq!(alice.requests_per_second, NonZeroU32::new(9));
        let bob = quota("bob");
        assert_eq!(
            (bob.line, bob.most.sessions, bob.most.bytes, bob.requests_per_second),
            (Some(6), 1, 5, None)
        );
        let nobody = permissions.of(&Identity::ANONYMOUS).quota();
        assert_eq!((nobody.line, nobody.most), (None, Usage::UNLIMITED));
        assert_eq!(permissions.total(), Usage { names: 3, ..Usage::UNLIMITED });
    }
}
