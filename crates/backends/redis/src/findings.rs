//! Consequences of the server's settings for locks: for `doctor`, and for the check before tokens are used.

use std::collections::BTreeMap;

use lockkeeper_backend::{BackendError, BackendErrorKind, Finding};

use super::store::RedisStore;

/// The settings that affect locks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Settings {
    appendonly: String,
    appendfsync: String,
    save: String,
    maxmemory: String,
    policy: String,
}

/// Refuses `fencing=counter` if a restart may lose tokens or if their counter may be evicted. Not called with
/// `force`.
pub(super) async fn check_that_tokens_last(store: &RedisStore) -> Result<(), BackendError> {
    let refused = |why: String| {
        let what = format!(
            "`fencing=counter` is refused: {why}; or take the risk with `&force=true`, or use `lockkeeper://`, whose \
             tokens outlive everything"
        );
        Err(BackendError::new(BackendErrorKind::Refused, what))
    };
    match settings(store).await {
        Err(error) => refused(format!("the server does not tell its settings ({error}): allow `CONFIG GET`")),
        Ok(settings) => match settings.spoil_tokens().first() {
            Some(why) => refused(why.clone()),
            None => Ok(()),
        },
    }
}

/// One finding on persistence and one on eviction, or a single one if the settings can't be read.
pub async fn of(store: &RedisStore) -> Result<Vec<Finding>, BackendError> {
    let settings = match settings(store).await {
        Ok(settings) => settings,
        Err(error) => {
            let says = format!("the server does not tell its settings: {error}; nothing can be said of them");
            return Ok(vec![Finding { spoils: false, says }]);
        }
    };
    Ok(settings.findings())
}

async fn settings(store: &RedisStore) -> Result<Settings, BackendError> {
    let mut settings = Settings::default();
    for (name, value) in [
        ("appendonly", &mut settings.appendonly),
        ("appendfsync", &mut settings.appendfsync),
        ("save", &mut settings.save),
        ("maxmemory", &mut settings.maxmemory),
        ("maxmemory-policy", &mut settings.policy),
    ] {
        let mut ask = redis::cmd("CONFIG");
        ask.arg("GET").arg(name);
        let answer = redis::from_redis_value::<BTreeMap<String, String>>(store.ask(ask).await?);
        *value = answer.ok().and_then(|mut answer| answer.remove(name)).unwrap_or_default();
    }
    Ok(settings)
}

impl Settings {
    fn evicts(&self) -> bool {
        self.policy != "noeviction"
    }

    /// Settings that could make tokens repeat.
    fn spoil_tokens(&self) -> Vec<String> {
        let mut why = Vec::new();
        if self.appendonly != "yes" {
            why.push(format!(
                "`appendonly` is `{}`, so that a restart may forget the last tokens; set `appendonly yes`",
                self.appendonly
            ));
        }
        if self.evicts() {
            why.push(format!(
                "`maxmemory-policy` is `{}`, so that the counter may be evicted; set `maxmemory-policy noeviction`",
                self.policy
            ));
        }
        why
    }

    fn findings(&self) -> Vec<Finding> {
        let finding = |spoils, says: String| Finding { spoils, says };
        let mut findings = Vec::new();
        findings.push(match (self.appendonly.as_str(), self.appendfsync.as_str()) {
            ("yes", "always") => finding(false, "appendonly yes, appendfsync always: locks outlive a crash".into()),
            ("yes", sync) => {
                // `no` leaves syncs to the kernel, which writes after 30 s (`vm.dirty_expire_centisecs`) or
                // later.
                let forgets = if sync == "no" { "of its last half minute or more" } else { "of its last second" };
                let says = format!(
                    "appendonly yes, appendfsync {sync}: a crash of the host may forget locks {forgets}; set \
                     `appendfsync always`"
                );
                finding(true, says)
            }
            (_, _) if self.save.is_empty() => finding(
                true,
                "appendonly no, no save: a restart forgets every lock while its holder works on; set `appendonly yes`"
                    .into(),
            ),
            _ => finding(
                true,
                format!(
                    "appendonly no, save {}: a restart forgets the locks since the last snapshot, and brings back \
                     older ones; set `appendonly yes`",
                    self.save
                ),
            ),
        });
        findings.push(match (self.evicts(), self.maxmemory.as_str()) {
            (false, _) => finding(false, "maxmemory-policy noeviction: no lock is evicted".into()),
            (true, "0") => finding(
                false,
                format!(
                    "maxmemory-policy {}, but no maxmemory: nothing is evicted; set `noeviction` before there is one",
                    self.policy
                ),
            ),
            (true, limit) => finding(
                true,
                format!(
                    "maxmemory {limit}, maxmemory-policy {}: a lock that is held may be evicted; set \
                     `maxmemory-policy noeviction`",
                    self.policy
                ),
            ),
        });
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(appendonly: &str, appendfsync: &str, maxmemory: &str, policy: &str) -> Settings {
        Settings {
            appendonly: appendonly.into(),
            appendfsync: appendfsync.into(),
            save: String::new(),
            maxmemory: maxmemory.into(),
            policy: policy.into(),
        }
    }

    #[test]
    fn unsafe_settings_are_reported_and_refused_for_tokens() {
        let good = settings("yes", "always", "100", "noeviction");
        assert!(good.spoil_tokens().is_empty() && good.findings().iter().all(|finding| !finding.spoils));
        let bad = settings("no", "everysec", "100", "allkeys-lru");
        let spoiled: Vec<bool> = bad.findings().iter().map(|finding| finding.spoils).collect();
        assert_eq!((bad.spoil_tokens().len(), spoiled), (2, vec![true, true]));
        let never = settings("yes", "no", "0", "noeviction").findings();
        assert!(never[0].spoils && never[0].says.contains("half minute"), "{never:?}");
        // Without a `maxmemory`, eviction may begin later, and tokens must outlast that.
        let unlimited = settings("yes", "everysec", "0", "allkeys-lru");
        assert_eq!(unlimited.spoil_tokens().len(), 1);
        assert!(!unlimited.findings()[1].spoils && unlimited.findings()[0].spoils);
    }
}
