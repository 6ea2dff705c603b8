//! Stripes: one name, split into several locks.

use crate::kind::{Kind, Unfenced};
use crate::lock::Lock;
use crate::locks::Locks;

/// A name that is split into several locks ([`Locks::striped`]): each key belongs to one of them.
///
/// The lock of a key is `NAME/STRIPE`, where the stripe is the CRC-32 (that of zlib) of the key's bytes,
/// modulo the number of stripes. All users of a name must give the same number.
#[derive(Clone, Debug)]
#[must_use = "it locks nothing itself"]
pub struct Striped<F: Kind = Unfenced> {
    locks: Locks<F>,
    name: String,
    stripes: u32,
}

impl<F: Kind> Striped<F> {
    pub(crate) fn new(locks: Locks<F>, name: &str, stripes: u32) -> Self {
        assert!(stripes > 0, "`{name}` can't be split into 0 stripes");
        Self { locks, name: name.to_owned(), stripes }
    }

    /// The stripe of a key, from 0.
    #[must_use]
    pub fn stripe(&self, key: impl AsRef<[u8]>) -> u32 {
        crc32fast::hash(key.as_ref()) % self.stripes
    }

    /// The lock for a key: one for its stripe.
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Lock<F> {
        self.locks.mutex(format!("{}/{}", self.name, self.stripe(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_belong_to_the_stripe_of_their_crc() {
        let locks = Locks::connect("memory:").await.unwrap();
        let striped = locks.striped("hot", 16);
        // 0xcbf43926 is the check value of this CRC.
        assert_eq!(striped.stripe("123456789"), 0xcbf4_3926 % 16);
        let held = striped.for_key("123456789").acquire().await.unwrap();
        assert!(locks.mutex("hot/6").try_acquire().await.unwrap().is_none());
        let other = (0..).map(|key: u32| key.to_string()).find(|key| striped.stripe(key) != 6).unwrap();
        assert!(striped.for_key(other).try_acquire().await.unwrap().is_some());
        drop(held);
    }
}
