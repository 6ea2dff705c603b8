//! The file of permissions: who may do what with which names.
//!
//! ```toml
//! revoked = ["old-laptop"]                  # may do nothing, whatever else is said
//!
//! [groups]
//! shop = ["billing", "orders-*"]            # a `*` at the end stands for any rest
//!
//! [[allow]]
//! who = ["group:shop", "alice"]             # `*`: everybody with an identity; `anonymous`: everybody else
//! actions = ["acquire", "read"]             # also: "break", "limit", "admin"
//! names = ["orders", "stock/eu"]            # these and all below them; `*`: all
//! ```
//!
//! Actions that no rule allows are denied. Rules only add, so their order has no meaning. Quotas: see
//! `quotas.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use lockkeeper_core::{LockName, Usage};
use serde::Deserialize;
use toml::Spanned;

use super::identity::{ANONYMOUS, Identity};
use super::quotas::{Quota, QuotaEntry, QuotaFields, QuotaRule};
use crate::files::FILE_BYTES_MAX;
use crate::hex::hex;

/// Most rules of a file.
const RULES_MAX: usize = 4_096;
const GROUP: &str = "group:";
const ALL: &str = "*";

/// What a caller wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Permission {
    /// Acquire locks of a name.
    Acquire,
    /// See the state of a name: describe, list, watch, check a token.
    Read,
    /// Break a hold of a name.
    Break,
    /// Set the number of a name's permits.
    Limit,
    /// Change the cluster, and make backups. Has no name.
    Admin,
}

impl Permission {
    /// All permissions.
    pub const ALL: [Self; 5] = [Self::Acquire, Self::Read, Self::Break, Self::Limit, Self::Admin];
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Break => "break",
            Self::Limit => "limit",
            Self::Admin => "admin",
        })
    }
}

/// A decision, with the line of the file that is its reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Decision {
    /// The rule at this line allows it.
    Allowed {
        /// Counted from 1.
        line: usize,
    },
    /// The caller is among the revoked, at this line.
    Revoked {
        /// Counted from 1.
        line: usize,
    },
    /// No rule allows it.
    NotAllowed,
}

impl Decision {
    /// Whether the action is allowed.
    #[must_use]
    pub fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed { .. })
    }
}

/// A file of permissions.
pub struct Permissions {
    groups: BTreeMap<String, Vec<String>>,
    revoked: Vec<(String, usize)>,
    rules: Vec<PermissionRule>,
    quotas: Vec<QuotaRule>,
    total: Usage,
    digest: String,
}

struct PermissionRule {
    line: usize,
    who: Vec<String>,
    actions: Vec<Permission>,
    /// Empty texts stand for all names.
    names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    groups: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    revoked: Vec<Spanned<String>>,
    #[serde(default)]
    allow: Vec<Spanned<Allow>>,
    #[serde(default)]
    quota: Vec<Spanned<QuotaEntry>>,
    #[serde(default)]
    total: QuotaFields,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Allow {
    who: Vec<String>,
    actions: Vec<Permission>,
    #[serde(default)]
    names: Vec<String>,
}

impl Permissions {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The fault and its line.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > FILE_BYTES_MAX {
            return Err(format!("it has {} bytes, at most {FILE_BYTES_MAX} are allowed", text.len()));
        }
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or_else(String::new, |span| format!("line {}: ", line(text, span)));
            format!("{line}{}", error.message())
        })?;
        for (what, count) in [("rules", file.allow.len()), ("quotas", file.quota.len())] {
            if count > RULES_MAX {
                return Err(format!("it has {count} {what}, at most {RULES_MAX} are allowed"));
            }
        }
        for (group, members) in &file.groups {
            for member in members {
                pattern(member, None).map_err(|why| format!("the group `{group}`: {why}"))?;
            }
        }
        let mut permissions = Self {
            revoked: Vec::new(),
            rules: Vec::new(),
            quotas: Vec::new(),
            total: file.total.or(Usage::UNLIMITED),
            groups: file.groups,
            digest: hex(&hmac_sha256::Hash::hash(text.as_bytes())),
        };
        for revoked in file.revoked {
            let line = line(text, revoked.span());
            let who = revoked.into_inner();
            pattern(&who, None).map_err(|why| format!("line {line}: {why}"))?;
            permissions.revoked.push((who, line));
        }
        for allow in file.allow {
            let line = line(text, allow.span());
            let rule =
                permissions.rule(line, allow.into_inner()).map_err(|why| format!("line {line}: {why}"))?;
            permissions.rules.push(rule);
        }
        for quota in file.quota {
            let line = line(text, quota.span());
            let rule = QuotaRule::new(line, quota.into_inner()).and_then(|rule| {
                rule.who.iter().try_for_each(|who| pattern(who, Some(&permissions.groups)))?;
                Ok(rule)
            });
            permissions.quotas.push(rule.map_err(|why| format!("line {line}: {why}"))?);
        }
        Ok(permissions)
    }

    fn rule(&self, line: usize, allow: Allow) -> Result<PermissionRule, String> {
        let Allow { who, actions, names } = allow;
        for who in &who {
            pattern(who, Some(&self.groups))?;
        }
        let needs_name = actions.iter().any(|action| *action != Permission::Admin);
        if who.is_empty() || actions.is_empty() || (needs_name && names.is_empty()) {
            let names = if needs_name { " and `names` (`[\"*\"]` for all)" } else { "" };
            return Err(format!("a rule needs `who`, `actions`{names}"));
        }
        let mut prefixes = Vec::new();
        for name in names {
            if name == ALL {
                prefixes.push(String::new());
                continue;
            }
            LockName::parse(&name).map_err(|error| {
                format!(
                    "`names` has {name:?}: {error}; a name covers itself and all below it, `*` stands for all"
                )
            })?;
            prefixes.push(name);
        }
        Ok(PermissionRule { line, who, actions, names: prefixes })
    }

    /// The quota of all callers together.
    pub(crate) fn total(&self) -> Usage {
        self.total
    }

    /// The SHA-256 of the file, in hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// What a caller may do. The work is proportional to the file's size, and done once for each caller.
    #[must_use]
    pub fn of(&self, caller: &Identity) -> Rights {
        let revoked = self.revoked.iter().find(|(pattern, _)| matches(pattern, caller));
        let mut rights = Rights {
            revoked: revoked.map(|(_, line)| *line),
            names: HashMap::new(),
            quota: Quota::default_of(caller),
        };
        let all_names = [String::new()];
        let has = |members: &[String]| members.iter().any(|member| matches(member, caller));
        let groups: HashSet<&str> =
            self.groups.iter().filter(|(_, members)| has(members)).map(|(group, _)| group.as_str()).collect();
        let is_for = |who: &String| match who.strip_prefix(GROUP) {
            Some(group) => groups.contains(group),
            None => matches(who, caller),
        };
        if let Some(rule) = self.quotas.iter().find(|rule| rule.who.iter().any(is_for)) {
            rights.quota = rule.quota(caller);
        }
        for rule in &self.rules {
            if !rule.who.iter().any(is_for) {
                continue;
            }
            for action in &rule.actions {
                let names: &[String] = if *action == Permission::Admin { &all_names } else { &rule.names };
                for name in names {
                    let lines = rights.names.entry(name.as_str().into()).or_default();
                    lines[*action as usize].get_or_insert(rule.line);
                }
            }
        }
        rights
    }
}

/// Without the names of callers.
impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permissions").field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// What one caller may do.
pub struct Rights {
    revoked: Option<usize>,
    /// By name; the empty one stands for all, and is the one of `admin`. For each action the line that allows
    /// it.
    names: HashMap<Box<str>, [Option<usize>; Permission::ALL.len()]>,
    quota: Quota,
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rights")
            .field("names", &self.names)
            .field("quota", &self.quota)
            .finish_non_exhaustive()
    }
}

impl Rights {
    /// Whether the caller may do this with the name and all below it; `None` stands for all names. The work
    /// is proportional to the number of the name's segments.
    #[must_use]
    pub fn decide(&self, action: Permission, name: Option<&LockName>) -> Decision {
        if let Some(line) = self.revoked {
            return Decision::Revoked { line };
        }
        let line_of = |name: &str| self.names.get(name)?[action as usize];
        let mut above = name.map_or("", LockName::as_str);
        loop {
            if let Some(line) = line_of(above) {
                return Decision::Allowed { line };
            }
            if above.is_empty() {
                return Decision::NotAllowed;
            }
            above = above.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }

    /// How much the caller may have and ask for.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Whether the caller may do what operators do: `admin`, or `break` holds of some name.
    #[must_use]
    pub(crate) fn is_operators(&self) -> bool {
        let has = |action: Permission| self.names.values().any(|lines| lines[action as usize].is_some());
        self.revoked.is_none() && (has(Permission::Admin) || has(Permission::Break))
    }

    /// Whether the caller is revoked.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.revoked.is_some()
    }

    /// Whether the caller may do nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.revoked.is_some() || self.names.is_empty()
    }
}

/// Checks the pattern of a caller. `groups`: groups are allowed, and must exist.
fn pattern(who: &str, groups: Option<&BTreeMap<String, Vec<String>>>) -> Result<(), String> {
    if who == ALL || who == ANONYMOUS {
        return Ok(());
    }
    match (who.strip_prefix(GROUP), groups) {
        (Some(group), Some(groups)) if groups.contains_key(group) => Ok(()),
        (Some(group), Some(_)) => Err(format!("there is no group `{group}` in `[groups]`")),
        (Some(_), None) => {
            Err(format!("{who:?} is a group; groups have members only, and all of them are listed"))
        }
        (None, _) => {
            let name = who.strip_suffix(ALL).unwrap_or(who);
            Identity::new(name).map(drop).map_err(|error| format!("{who:?} is no caller: {error}"))
        }
    }
}

/// Whether a pattern includes a caller.
fn matches(pattern: &str, caller: &Identity) -> bool {
    if pattern == ANONYMOUS || caller == &Identity::ANONYMOUS {
        return pattern == ANONYMOUS && caller == &Identity::ANONYMOUS;
    }
    match pattern.strip_suffix(ALL) {
        Some(begin) => caller.as_str().starts_with(begin),
        None => caller.as_str() == pattern,
    }
}

/// The line at which a span begins, from 1.
fn line(text: &str, span: Range<usize>) -> usize {
    text.as_bytes()[..span.start.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"revoked = [
    "old-laptop",
]

[groups]
shop = ["billing", "orders-*"]

[[allow]]
who = ["group:shop"]
actions = ["acquire", "read"]
names = ["orders", "stock/eu"]

[[allow]]
who = ["*"]
actions = ["read"]
names = ["*"]

[[allow]]
who = ["root"]
actions = ["admin"]

[[allow]]
who = ["anonymous"]
actions = ["acquire"]
names = ["public"]
"#;

    fn decide(who: &str, action: Permission, name: &str) -> Decision {
        let who = if who == ANONYMOUS { Identity::ANONYMOUS } else { Identity::new(who).unwrap() };
        let name = (!name.is_empty()).then(|| LockName::parse(name).unwrap());
        Permissions::parse(FILE).unwrap().of(&who).decide(action, name.as_ref())
    }

    #[test]
    fn decision_names_the_line_of_its_rule() {
        use Permission::{Acquire, Admin, Break, Read};
        let allowed = |line| Decision::Allowed { line };
        for (who, action, name, wanted) in [
            ("billing", Acquire, "orders", allowed(8)),
            ("billing", Acquire, "orders/42/items", allowed(8)),
            ("orders-7", Acquire, "stock/eu", allowed(8)),
            ("billing", Acquire, "ordersX", Decision::NotAllowed),
            ("billing", Acquire, "stock", Decision::NotAllowed),
            ("billing", Acquire, "", Decision::NotAllowed),
            ("billing", Break, "orders", Decision::NotAllowed),
            ("billing", Read, "orders", allowed(8)),
            ("billing", Read, "", allowed(13)),
            ("somebody", Read, "stock/us", allowed(13)),
            ("somebody", Acquire, "orders", Decision::NotAllowed),
            ("root", Admin, "", allowed(18)),
            ("billing", Admin, "", Decision::NotAllowed),
            ("old-laptop", Read, "orders", Decision::Revoked { line: 2 }),
            ("anonymous", Acquire, "public/a", allowed(22)),
            ("anonymous", Read, "public/a", Decision::NotAllowed),
            ("billing", Acquire, "public", Decision::NotAllowed),
        ] {
            assert_eq!(decide(who, action, name), wanted, "{who} {action} {name}");
        }
    }

    #[test]
    fn example_of_the_security_page_is_a_file() {
        let page = include_str!("../../../../docs/security.md");
        let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let permissions = Permissions::parse(example).unwrap();
        let of = |who: &str, action, name: &str| {
            let name = LockName::parse(name).unwrap();
            permissions.of(&Identity::new(who).unwrap()).decide(action, Some(&name)).is_allowed()
        };
        assert!(of("orders-7", Permission::Acquire, "stock/eu/1") && of("alice", Permission::Read, "orders"));
        assert!(!of("old-laptop", Permission::Read, "orders") && !of("alice", Permission::Break, "orders"));
    }

    #[test]
    fn file_without_rules_denies_everything() {
        let rights = Permissions::parse("").unwrap().of(&Identity::new("root").unwrap());
        assert!(rights.is_empty());
        assert!(Permission::ALL.iter().all(|action| !rights.decide(*action, None).is_allowed()));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, why) in [
            (
                "[[allow]]\nwho=[\"a\"]\nactions=[\"read\"]",
                "line 1: a rule needs `who`, `actions` and `names`",
            ),
            ("\n[[allow]]\nwho=[]\nactions=[\"admin\"]", "line 2: a rule needs `who`, `actions`"),
            (
                "[[allow]]\nwho=[\"group:x\"]\nactions=[\"read\"]\nnames=[\"*\"]",
                "line 1: there is no group `x` in `[groups]`",
            ),
            ("[groups]\nx=[\"group:y\"]", "the group `x`: \"group:y\" is a group"),
            ("revoked=[\n\"a b\"]", "line 2: \"a b\" is no caller"),
            ("[[allow]]\nwho=[\"a\"]\nactions=[\"read\"]\nnames=[\"a/\"]", "line 1: `names` has \"a/\""),
            ("[[quota]]\nwho=[\"a\"]", "line 1: a quota needs `who` and a limit: `sessions`"),
            ("[[quota]]\nwho=[\"group:x\"]\nbytes=1", "line 1: there is no group `x`"),
            ("[[quota]]\nwho=[\"a\"]\nrequests-per-second=0", "line 3: "),
            ("[total]\nrequests-per-second=1", "line 2: "),
        ] {
            let error = Permissions::parse(text).err().unwrap_or_default();
            assert!(error.starts_with(why), "{text}: {error}");
        }
        for text in ["[[allow]]\nwho=[\"a\"]\nactions=[\"write\"]", "allowed = 1", "[[allow"] {
            let error = Permissions::parse(text).err().unwrap_or_default();
            assert!(error.contains("line"), "{error}");
        }
        let long = "#".repeat(FILE_BYTES_MAX + 1);
        assert!(Permissions::parse(&long).err().unwrap_or_default().contains("at most"));
    }
}
