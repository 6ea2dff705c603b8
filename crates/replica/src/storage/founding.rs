//! The bootstrap record: the cluster that a data directory belongs to, and the node's identity in it. Written
//! once.

use lockkeeper_wire::store::Founding;
use prost::Message;

use super::error::OpenError;
use super::format::{DirectoryIdentity, FileKind, Frame, PIECE_BYTES_MAX, SECTOR};
use super::single;
use crate::disk::Disk;

pub(super) const NAME: &str = "founding";

/// The identity in the headers of all files of this cluster and data directory.
pub(super) fn identity(founding: &Founding) -> Option<DirectoryIdentity> {
    Some(DirectoryIdentity {
        cluster: founding.cluster.as_slice().try_into().ok()?,
        incarnation: founding.incarnation.as_slice().try_into().ok()?,
    })
}

/// Checks a bootstrap record before it is written; returns its identity.
pub(super) fn check(founding: &Founding) -> Result<DirectoryIdentity, OpenError> {
    let identity = identity(founding)
        .ok_or(OpenError::Unfounded { what: "the ids of cluster and data directory have 16 bytes each" })?;
    if founding.node == 0 {
        return Err(OpenError::Unfounded { what: "nodes are numbered from 1; 0 stands for nobody" });
    }
    if founding.encoded_len() > PIECE_BYTES_MAX {
        return Err(OpenError::Unfounded { what: "it is longer than 1 MiB" });
    }
    Ok(identity)
}

/// Writes the record, durably.
pub(super) fn write(
    disk: &impl Disk,
    founding: &Founding,
    identity: DirectoryIdentity,
) -> Result<(), OpenError> {
    single::write(disk, NAME, (FileKind::Founding, Frame::Founding), identity, &founding.encode_to_vec())
}

/// Reads the record.
pub(super) fn read(disk: &impl Disk) -> Result<(Founding, DirectoryIdentity), OpenError> {
    let (owner, what, payload) = single::read(disk, NAME, FileKind::Founding)?;
    match (what, Founding::decode(payload.as_slice())) {
        (Frame::Founding, Ok(founding)) if identity(&founding) == Some(owner) => Ok((founding, owner)),
        _ => Err(OpenError::corrupt(NAME, SECTOR, "no founding record of this header's cluster stands here")),
    }
}
