//! The key of a resource's marks, and the cluster slot of a key.
//!
//! The marks of a resource are one hash in the cluster slot of the resource: `{orders/42}:lockkeeper:fence`
//! for `orders/42`, or `{user:1}:cart:lockkeeper:tagged:fence` for `{user:1}:cart`, which has a hash tag of
//! its own. The two forms can't collide: `tagged` distinguishes `{x}` from `x`. (A key named like the
//! resource is in another slot than the marks if it has a `}` but no tag, such as `a}b`. The error
//! `CrossSlot` returns the tag that places a key in the slot of the marks.) The fields of the hash are `any`
//! and `writer`, and `any:3` and `writer:3` for permit slot 3; the values are tokens in decimal. The key
//! never expires.

/// Number of slots in every cluster.
const SLOTS: u16 = 16_384;

/// The key of the marks of `resource`.
pub(super) fn marks_key(resource: &str) -> String {
    match tag(resource.as_bytes()) {
        Some(_) => format!("{resource}:lockkeeper:tagged:fence"),
        None => format!("{{{resource}}}:lockkeeper:fence"),
    }
}

/// The hash tag of a key: the part that Redis hashes instead of the whole key.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let from = key.iter().position(|byte| *byte == b'{')? + 1;
    let len = key[from..].iter().position(|byte| *byte == b'}')?;
    (len > 0).then(|| &key[from..from + len])
}

/// The part of a key that determines its slot.
pub(super) fn hashed(key: &[u8]) -> &[u8] {
    tag(key).unwrap_or(key)
}

/// The slot of a key.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(hashed(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_equal_those_of_redis() {
        // `CLUSTER KEYSLOT` of Redis 7.
        for (key, slot) in
            [("foo", 12182), ("{user1000}.following", 3443), ("foo{}{bar}", 8363), ("123456789", 12739)]
        {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn the_marks_are_in_the_slot_of_their_resource() {
        for resource in ["orders/42", "{user:1}:cart", "a{b}c{d}", "{open", "größe"] {
            let marks = marks_key(resource);
            assert_eq!(slot_of(marks.as_bytes()), slot_of(resource.as_bytes()), "{resource}: {marks}");
        }
    }

    #[test]
    fn marks_keys_are_distinct() {
        let resources = ["x", "{x}", "{x}:lockkeeper", "x}", "{x", "{{x}}", "{}x", "{x}:lockkeeper:tagged"];
        let mut keys: Vec<_> = resources.iter().map(|resource| marks_key(resource)).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), resources.len(), "{keys:?}");
    }
}
