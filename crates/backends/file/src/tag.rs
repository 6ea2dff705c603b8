//! The identity of a session in the files of a lock directory.

use lockkeeper_backend::hex;

use super::os::random_id;

/// A session's identity in records. It is stored in the field for the hash of the session's secret, because
/// that is the field by which the table finds the session when it is opened again (S1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(super) struct Tag {
    id: [u8; 16],
    pid: u32,
}

impl Tag {
    /// Of a new session of this process.
    pub(super) fn random() -> Self {
        Self { id: random_id(), pid: std::process::id() }
    }

    pub(super) fn to_hash(self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash[..16].copy_from_slice(&self.id);
        hash[16..20].copy_from_slice(&self.pid.to_le_bytes());
        hash
    }

    pub(super) fn from_hash(hash: &[u8; 32]) -> Self {
        let pid = u32::from_le_bytes(std::array::from_fn(|i| hash[16 + i]));
        Self { id: std::array::from_fn(|i| hash[i]), pid }
    }

    /// The process id, for operators.
    pub(super) fn pid(self) -> u32 {
        self.pid
    }

    /// The name of its file.
    pub(super) fn file(self) -> String {
        hex(&self.id)
    }
}
