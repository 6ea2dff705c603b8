//! The consequences of a server's settings for the marks that it stores.
//!
//! Refuses a server with an eviction policy, and reports what a crash or a fail-over may lose. Reads a
//! setting from `INFO` where that contains it, since hosted servers often forbid `CONFIG`.

use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, Value};

use super::error::RedisFenceError;

/// The consequence of one setting for the marks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Whether an acknowledged mark may be lost.
    pub spoils: bool,
    /// The setting and its consequence; for some settings also the recommended value.
    pub says: String,
}

/// The `INFO` replies of the servers behind a connection: one server, or each primary of a cluster.
#[derive(Default)]
pub(super) struct Servers {
    /// The text of `INFO` of each server.
    replies: Vec<String>,
    /// The error reply to `INFO`, or empty.
    why: String,
}

impl Servers {
    /// Requests `INFO`. An error reply is stored in `why`, since only some checks need the information.
    pub(super) async fn ask(connection: &mut impl ConnectionLike) -> Result<Self, RedisError> {
        let mut servers = Self::default();
        match connection.req_packed_command(&redis::cmd("INFO")).await.and_then(Value::extract_error) {
            Ok(answer) => gather(answer, &mut servers.replies),
            Err(error) if error.code().is_some() => servers.why = error.to_string(),
            Err(error) => return Err(error),
        }
        Ok(servers)
    }

    /// The values that a field of `INFO` has on the servers.
    fn field<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let lines = self.replies.iter().flat_map(|reply| reply.lines());
        lines.filter_map(move |line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    }

    /// Whether the keys of one call must be in one slot. A server without this information is treated as a
    /// cluster.
    pub(super) fn is_cluster(&self) -> bool {
        let mut modes = self.field("cluster_enabled").peekable();
        modes.peek().is_none() || modes.any(|mode| mode != "0")
    }

    /// Refuses replicas, which may lag.
    pub(super) fn refuse_replicas(&self) -> Result<(), RedisFenceError> {
        if self.field("role").any(|role| role != "master") { Err(RedisFenceError::Replica) } else { Ok(()) }
    }

    /// Refuses every policy except `noeviction`, even `volatile-*`, which evicts only keys with a TTL (the
    /// marks have none).
    pub(super) async fn refuse_eviction(
        &self,
        connection: &mut impl ConnectionLike,
    ) -> Result<(), RedisFenceError> {
        let mut policies: Vec<String> = self.field("maxmemory_policy").map(str::to_owned).collect();
        if policies.is_empty() {
            let found = setting(connection, "maxmemory-policy").await;
            policies
                .extend(found.map_err(|error| RedisFenceError::EvictionUnknown { why: error.to_string() })?);
        }
        match policies.iter().find(|policy| *policy != "noeviction") {
            Some(policy) => Err(RedisFenceError::Evicts { policy: policy.clone() }),
            None if policies.is_empty() => {
                let why = if self.why.is_empty() { "it has no such setting" } else { &self.why };
                Err(RedisFenceError::EvictionUnknown { why: why.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// The consequences of the settings: for eviction, a crash, and a fail-over.
    pub(super) async fn findings(&self, connection: &mut impl ConnectionLike) -> Vec<Finding> {
        let mut findings = vec![of_eviction(self.field("maxmemory_policy").collect())];
        let [append, sync, save] = [
            setting(connection, "appendonly").await,
            setting(connection, "appendfsync").await,
            setting(connection, "save").await,
        ];
        let pauses = setting(connection, "no-appendfsync-on-rewrite").await;
        if self.replies.len() > 1 {
            findings.push(Finding {
                spoils: true,
                says: format!(
                    "{} nodes: what follows about disks is of one of them, whichever answered; ask each",
                    self.replies.len()
                ),
            });
        }
        if let (Ok(Some(sync)), Ok(Some(pauses))) = (&sync, &pauses)
            && sync == "always"
            && pauses == "yes"
        {
            findings.push(Finding {
                spoils: true,
                says: "no-appendfsync-on-rewrite yes: while the log is rewritten nothing is synced, and a crash of the host \
                       may forget marks. Set it to `no`"
                    .into(),
            });
        }
        findings.push(match (append, sync, save) {
            (Ok(append), Ok(sync), Ok(save)) => of_disk(
                append.as_deref().unwrap_or_default(),
                sync.as_deref().unwrap_or_default(),
                save.as_deref().unwrap_or_default(),
            ),
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => Finding {
                spoils: true,
                says: format!(
                    "the server does not tell how it stores what it has ({error}); unless it is `appendonly yes` and \
                     `appendfsync always`, a crash may forget marks"
                ),
            },
        });
        findings.push(of_replicas(
            self.field("connected_slaves").filter_map(|count| count.parse::<u64>().ok()).sum(),
        ));
        findings
    }
}

/// Collects the strings of a reply, recursively: a cluster connection returns a map or a list with one string
/// per node.
fn gather(answer: Value, replies: &mut Vec<String>) {
    match answer {
        Value::BulkString(bytes) => replies.push(String::from_utf8_lossy(&bytes).into_owned()),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => replies.push(text),
        Value::Array(items) => items.into_iter().for_each(|item| gather(item, replies)),
        Value::Map(pairs) => pairs.into_iter().for_each(|(_, item)| gather(item, replies)),
        _ => {}
    }
}

/// One setting; `None` if the server has no such setting.
async fn setting(connection: &mut impl ConnectionLike, name: &str) -> Result<Option<String>, RedisError> {
    let mut ask = Cmd::new();
    ask.arg("CONFIG").arg("GET").arg(name);
    let mut words = Vec::new();
    match connection.req_packed_command(&ask).await?.extract_error()? {
        Value::Map(pairs) => pairs.into_iter().for_each(|(_, value)| gather(value, &mut words)),
        Value::Array(items) => items.into_iter().skip(1).for_each(|value| gather(value, &mut words)),
        _ => {}
    }
    Ok(words.into_iter().next())
}

fn of_eviction(policies: Vec<&str>) -> Finding {
    match policies.iter().find(|policy| **policy != "noeviction") {
        None if policies.is_empty() => {
            Finding { spoils: true, says: "maxmemory-policy unknown: marks may be thrown away".into() }
        }
        None => Finding { spoils: false, says: "maxmemory-policy noeviction: no mark is thrown away".into() },
        Some(policy) => Finding {
            spoils: true,
            says: format!(
                "maxmemory-policy {policy}: marks may be thrown away, and every token be let in; set \
                 `maxmemory-policy noeviction`"
            ),
        },
    }
}

fn of_disk(append: &str, sync: &str, save: &str) -> Finding {
    match (append, sync) {
        ("yes", "always") => Finding {
            spoils: false,
            says: "appendonly yes, appendfsync always: marks outlive a crash of the server and of its host"
                .into(),
        },
        ("yes", sync) => Finding {
            spoils: true,
            says: format!(
                "appendonly yes, appendfsync {sync}: marks outlive a crash of the server; one of the host may forget \
                 those of the last second. Set `appendfsync always`"
            ),
        },
        _ => Finding {
            spoils: true,
            says: format!(
                "appendonly {append}, save `{save}`: a restart forgets marks, and lets tokens in that were refused. Set \
                 `appendonly yes` and `appendfsync always`"
            ),
        },
    }
}

fn of_replicas(replicas: u64) -> Finding {
    if replicas == 0 {
        return Finding { spoils: false, says: "no replica: no fail-over can bring older marks".into() };
    }
    Finding {
        spoils: true,
        says: format!(
            "{replicas} replicas, which follow without being waited for: a fail-over may forget the last marks together \
             with the last writes"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn telling(replies: &[&str]) -> Servers {
        Servers { replies: replies.iter().map(|reply| (*reply).to_owned()).collect(), why: String::new() }
    }

    #[test]
    fn all_nodes_of_a_cluster_are_checked() {
        let cluster =
            telling(&["role:master\r\ncluster_enabled:1\r\n", "role:slave\r\ncluster_enabled:1\r\n"]);
        assert!(cluster.is_cluster());
        assert!(matches!(cluster.refuse_replicas(), Err(RedisFenceError::Replica)));
        let one = telling(&["role:master\r\ncluster_enabled:0\r\nmaxmemory_policy:allkeys-lru\r\n"]);
        assert!(!one.is_cluster() && one.refuse_replicas().is_ok());
        assert!(telling(&[]).is_cluster(), "who says nothing may be one");
    }

    #[test]
    fn findings_report_losses_and_recommended_settings() {
        for (append, sync, spoils) in
            [("yes", "always", false), ("yes", "everysec", true), ("no", "always", true)]
        {
            let finding = of_disk(append, sync, "");
            assert_eq!(
                (finding.spoils, finding.says.contains("et `append")),
                (spoils, spoils),
                "{}",
                finding.says
            );
        }
        assert!(of_eviction(vec!["noeviction", "volatile-lru"]).says.contains("volatile-lru"));
        assert!(of_eviction(vec![]).spoils && !of_eviction(vec!["noeviction"]).spoils);
        assert!(of_replicas(2).spoils && !of_replicas(0).spoils);
    }
}
