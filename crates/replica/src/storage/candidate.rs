//! The candidate state of a node that belongs to no cluster: identity, list of nodes, and promise.
//!
//! Responsible for: a restarted node announces the same state that it announced before, as the bootstrap
//! protocol requires (see [`crate::bootstrap`]).

use lockkeeper_wire::store::Candidate;
use prost::Message;

use super::error::OpenError;
use super::format::{DirectoryIdentity, FileKind, Frame, PIECE_BYTES_MAX, SECTOR};
use super::single;
use crate::disk::Disk;

pub(super) const NAME: &str = "candidate";

/// The header's identity for a candidate: no cluster id yet.
fn identity(candidate: &Candidate) -> Option<DirectoryIdentity> {
    let incarnation = candidate.member.as_ref()?.incarnation.as_slice().try_into().ok()?;
    Some(DirectoryIdentity { cluster: [0; 16], incarnation })
}

/// Replaces the stored candidate, durably.
pub(super) fn write(disk: &impl Disk, candidate: &Candidate) -> Result<(), OpenError> {
    let identity = identity(candidate)
        .ok_or(OpenError::Unfounded { what: "the id of a candidate's data directory has 16 bytes" })?;
    if candidate.encoded_len() > PIECE_BYTES_MAX {
        return Err(OpenError::Unfounded { what: "its list of nodes is longer than 1 MiB" });
    }
    single::write(disk, NAME, (FileKind::Candidate, Frame::Candidate), identity, &candidate.encode_to_vec())
}

/// Reads the stored candidate.
pub(super) fn read(disk: &impl Disk) -> Result<Candidate, OpenError> {
    let (owner, what, payload) = single::read(disk, NAME, FileKind::Candidate)?;
    match (what, Candidate::decode(payload.as_slice())) {
        (Frame::Candidate, Ok(candidate)) if identity(&candidate) == Some(owner) => Ok(candidate),
        _ => {
            Err(OpenError::corrupt(NAME, SECTOR, "no candidate of this header's data directory stands here"))
        }
    }
}
