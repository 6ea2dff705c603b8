//! Slots of a cluster: which node has a key.

use lockkeeper_backend::Host;
use redis::Value;

use super::answers::Items;

/// The number of slots of every cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: of its hash tag, if it has one.
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed.as_bytes()) % SLOTS
}

/// A range of slots: first and last slot, and its primary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Host,
}

/// Decodes the reply to `CLUSTER SLOTS`. `host`: the host that sent it, for a node that reports no address of
/// its own. `None`: it is no such reply.
pub(super) fn ranges(answer: &Value, host: &Host) -> Option<Vec<Range>> {
    let (mut items, mut ranges) = (Items::of(answer)?, Vec::new());
    while !items.is_empty() {
        let mut range = items.list()?;
        let (first, last) = (u16::try_from(range.small()?).ok()?, u16::try_from(range.small()?).ok()?);
        let mut primary = range.list()?;
        // Null, empty, or `?` from Redis 7 if it is configured to report a hostname and has none.
        let name = primary.word().filter(|name| !matches!(*name, "" | "?")).unwrap_or(&host.name);
        let port = u16::try_from(primary.small()?).ok()?;
        ranges.push(Range { first, last, primary: Host { name: name.to_owned(), port: Some(port) } });
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_computed_as_redis_does() {
        // `CLUSTER KEYSLOT` of Redis 7.
        for (key, slot) in
            [("foo", 12182), ("{user1000}.following", 3443), ("foo{}{bar}", 8363), ("123456789", 12739)]
        {
            assert_eq!(slot_of(key), slot, "{key}");
        }
        assert_eq!(slot_of("{orders/42}:lockkeeper:queue"), slot_of("orders/42"));
    }

    #[test]
    fn a_cluster_slots_reply_is_decoded() {
        let node = |name: &str, port| {
            Value::Array(vec![
                Value::BulkString(name.into()),
                Value::Int(port),
                Value::BulkString("id".into()),
            ])
        };
        let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let answer =
            Value::Array(vec![range(0, 5460, node("10.0.0.1", 7000)), range(5461, 16383, node("", 7001))]);
        let host = Host { name: "seed".into(), port: None };
        let found: Vec<_> = ranges(&answer, &host)
            .unwrap()
            .into_iter()
            .map(|range| (range.first, range.last, range.primary.name, range.primary.port))
            .collect();
        assert_eq!(
            found,
            [(0, 5460, "10.0.0.1".into(), Some(7000)), (5461, 16383, "seed".into(), Some(7001))]
        );
        for nonsense in [Value::Okay, Value::Array(vec![Value::Nil])] {
            assert_eq!(ranges(&nonsense, &host), None);
        }
    }
}
