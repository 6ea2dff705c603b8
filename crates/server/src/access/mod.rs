//! Authentication by tokens, authorization by permissions, and the files that contain both.
//!
//! Responsible for: the node that terminates the caller's connection makes the decision, with its own files;
//! each decision takes bounded work; reloaded files apply to every request that arrives afterwards.

mod identity;
mod permissions;
mod quotas;
mod rates;
mod tokens;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper_core::{LockName, Usage};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use identity::{Identity, IdentityError};
pub use permissions::{Decision, Permission, Permissions, Rights};
pub use quotas::Quota;
pub use tokens::{NewToken, NewTokenError};
pub(crate) use tokens::{TokenId, Tokens};

use crate::error::FileError;
use crate::files::{Reload, read, unusable};
use rates::Rates;

/// The size of the cache of callers' rights; a full cache is emptied.
const REMEMBERED_MAX: usize = 4_096;

/// The files with which a node authenticates and authorizes its callers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AccessFiles {
    /// The tokens; `None`: no caller has a token.
    pub tokens: Option<PathBuf>,
    /// The permissions; `None`: every caller may do everything.
    pub permissions: Option<PathBuf>,
}

/// The files in use.
pub(crate) struct Access {
    files: AccessFiles,
    current: Mutex<Arc<Loaded>>,
    rates: Rates,
    /// Notified when changed files were loaded.
    changed: Notify,
}

struct Loaded {
    /// The contents of both files.
    content: [Vec<u8>; 2],
    tokens: Tokens,
    permissions: Option<Permissions>,
    rights: Mutex<HashMap<Identity, Arc<Rights>>>,
}

impl Access {
    /// Reads the files.
    ///
    /// # Errors
    /// A file can't be read or is not usable.
    pub(crate) fn load(files: &AccessFiles) -> Result<Arc<Self>, FileError> {
        let loaded = Loaded::new(contents(files)?, files)?;
        let current = Mutex::new(Arc::new(loaded));
        Ok(Arc::new(Self { files: files.clone(), current, rates: Rates::default(), changed: Notify::new() }))
    }

    /// Completes when changed files were loaded since the last completion. Only one task may wait.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The refusal if the current files revoke the caller; else `None`.
    pub(crate) fn revoked(&self, caller: &Identity) -> Option<String> {
        let rights = self.rights(caller)?;
        rights.is_revoked().then(|| revoked(caller))
    }

    /// Why the caller's open streams, calls and connections must end by the current files; `None` if they may
    /// continue.
    pub(crate) fn ended(&self, caller: &Identity, token: Option<&TokenId>) -> Option<String> {
        if let Some(refusal) = self.revoked(caller) {
            return Some(refusal);
        }
        let is_removed = !self.current().tokens.has(caller, token?);
        is_removed.then(|| format!("{caller} may do nothing: its token was removed"))
    }

    /// Whether this node accepts tokens.
    pub(crate) fn takes_tokens(&self) -> bool {
        self.files.tokens.is_some()
    }

    /// The caller of a token, and the id of the token.
    pub(crate) fn caller(&self, token: &str) -> Option<(Identity, TokenId)> {
        self.current().tokens.caller(token)
    }

    /// The digest of the permissions; `None`: there are none.
    pub(crate) fn digest(&self) -> Option<String> {
        self.current().permissions.as_ref().map(|permissions| permissions.digest().to_owned())
    }

    /// The rights of a caller by the current files; `None`: the caller may do everything.
    pub(crate) fn rights(&self, caller: &Identity) -> Option<Arc<Rights>> {
        let current = self.current();
        let permissions = current.permissions.as_ref()?;
        let mut known = current.rights.lock();
        if let Some(rights) = known.get(caller) {
            return Some(rights.clone());
        }
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        let rights = Arc::new(permissions.of(caller));
        known.insert(caller.clone(), rights.clone());
        Some(rights)
    }

    /// Counts a request against the caller's rate limit.
    ///
    /// # Errors
    /// The limit is exceeded; the message is for the caller.
    pub(crate) fn count_request(&self, rights: &Rights, caller: &Identity) -> Result<(), String> {
        rights.quota().requests_per_second.map_or(Ok(()), |rate| self.rates.count(rate, caller))
    }

    /// The limits on all sessions of a caller together, by the current files.
    pub(crate) fn quota(&self, caller: &Identity) -> Usage {
        self.rights(caller).map_or_else(|| quotas::default_of(caller), |rights| rights.quota().most)
    }

    /// The limits on all sessions of all callers together.
    pub(crate) fn total_quota(&self) -> Usage {
        self.current().permissions.as_ref().map_or(Usage::UNLIMITED, Permissions::total)
    }

    fn current(&self) -> Arc<Loaded> {
        self.current.lock().clone()
    }
}

/// Checks whether the rights of a caller allow this; `name` `None` stands for all names.
///
/// # Errors
/// Why not, in words for the caller.
pub(crate) fn check(
    rights: &Rights,
    caller: &Identity,
    action: Permission,
    name: Option<&LockName>,
) -> Result<(), String> {
    match rights.decide(action, name) {
        Decision::Allowed { .. } => Ok(()),
        Decision::Revoked { .. } => Err(revoked(caller)),
        Decision::NotAllowed => Err(format!(
            "{caller} may not {}: this node's permissions do not allow it; ask its operators",
            in_words(action, name)
        )),
    }
}

/// The action as a phrase that follows "may not".
fn in_words(action: Permission, name: Option<&LockName>) -> String {
    match (action, name) {
        (Permission::Admin, _) => "do what needs the permission `admin`".to_owned(),
        (Permission::Acquire, Some(name)) => format!("acquire `{name}`"),
        (Permission::Read, Some(name)) => format!("read `{name}`"),
        (Permission::Break, Some(name)) => format!("break holds of `{name}`"),
        (Permission::Limit, Some(name)) => format!("set the limit of `{name}`"),
        (action, None) => format!("{action} all names"),
    }
}

/// The refusal of a revoked caller.
fn revoked(caller: &Identity) -> String {
    format!("{caller} may do nothing: it is revoked")
}

impl Reload for Access {
    fn reload(&self) -> Result<bool, FileError> {
        let content = contents(&self.files)?;
        if content == self.current().content {
            return Ok(false);
        }
        let loaded = Loaded::new(content, &self.files)?;
        *self.current.lock() = Arc::new(loaded);
        self.rates.forget_unused();
        self.changed.notify_one();
        Ok(true)
    }

    fn names(&self) -> String {
        let current = self.current();
        let mut names = Vec::new();
        if let Some(file) = &self.files.tokens {
            names.push(format!("`{}` ({} tokens)", file.display(), current.tokens.len()));
        }
        if let (Some(file), Some(permissions)) = (&self.files.permissions, &current.permissions) {
            names.push(format!("`{}` (SHA-256 {})", file.display(), permissions.digest()));
        }
        names.join(", ")
    }
}

/// The contents of both files; empty for a file that is not given.
fn contents(files: &AccessFiles) -> Result<[Vec<u8>; 2], FileError> {
    let content = |file: &Option<PathBuf>| file.as_ref().map_or(Ok(Vec::new()), |file| read(file));
    Ok([content(&files.tokens)?, content(&files.permissions)?])
}

impl Loaded {
    fn new(content: [Vec<u8>; 2], files: &AccessFiles) -> Result<Self, FileError> {
        let [tokens, permissions] = &content;
        let tokens = match &files.tokens {
            None => Tokens::default(),
            Some(file) => {
                let text = text(tokens, file)?;
                Tokens::parse(text).map_err(|why| unusable(file, why))?
            }
        };
        let permissions = match &files.permissions {
            None => None,
            Some(file) => {
                let text = text(permissions, file)?;
                Some(Permissions::parse(text).map_err(|why| unusable(file, why))?)
            }
        };
        Ok(Self { content, tokens, permissions, rights: Mutex::default() })
    }
}

fn text<'content>(content: &'content [u8], file: &Path) -> Result<&'content str, FileError> {
    std::str::from_utf8(content).map_err(|error| unusable(file, format!("it is no text in UTF-8: {error}")))
}
