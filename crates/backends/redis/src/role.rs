//! The replication role of a server: a replica grants nothing, and may lack data of its primary.

use redis::{Cmd, Value};

/// The first major version of Redis with all commands that the scripts use.
const VERSION_MIN: u32 = 6;

/// The command that returns the role. `HELLO` needs no permission, and without arguments changes nothing.
pub(super) fn ask() -> Cmd {
    redis::cmd("HELLO")
}

/// Whether the answer to [`ask`] or `INFO` is that of a replica. A proxy that does not answer counts as a
/// primary.
pub(super) fn is_replica(answer: &Value) -> bool {
    let is_role = |value: &Value| matches!(value, Value::BulkString(text) if text == b"role");
    let role = match answer {
        Value::Map(fields) => fields.iter().find(|(key, _)| is_role(key)).map(|(_, role)| role),
        Value::BulkString(info) => return field(info, "role") == Some("slave"),
        Value::Array(items) => items.chunks_exact(2).find(|pair| is_role(&pair[0])).map(|pair| &pair[1]),
        _ => None,
    };
    matches!(role, Some(Value::BulkString(role)) if role == b"replica" || role == b"slave")
}

/// Whether `INFO` reports a version older than [`VERSION_MIN`].
pub(super) fn is_too_old(info: &Value) -> bool {
    let Value::BulkString(info) = info else { return false };
    let major = field(info, "redis_version").and_then(|version| version.split('.').next()?.parse().ok());
    major.is_some_and(|major: u32| major < VERSION_MIN)
}

fn field<'a>(info: &'a [u8], name: &str) -> Option<&'a str> {
    let info = std::str::from_utf8(info).ok()?;
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_recognized_in_both_protocols() {
        let parse = |text: &str| redis::parse_redis_value(text.as_bytes()).unwrap();
        assert!(is_replica(&parse("%2\r\n$5\r\nproto\r\n:3\r\n$4\r\nrole\r\n$7\r\nreplica\r\n")));
        assert!(is_replica(&parse("*4\r\n$5\r\nproto\r\n:2\r\n$4\r\nrole\r\n$5\r\nslave\r\n")));
        assert!(!is_replica(&parse("%1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n")));
        let info = "# Server\r\nredis_version:5.0.14\r\n# Replication\r\nrole:slave\r\n";
        let info = Value::BulkString(info.into());
        assert!(is_replica(&info) && is_too_old(&info));
        assert!(!is_too_old(&Value::BulkString("redis_version:7.0.15\r\nrole:master".into())));
        assert!(!is_replica(&parse("-ERR unknown command 'HELLO'\r\n")));
    }
}
