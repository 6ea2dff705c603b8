//! What a node without a cluster says of itself, kept so that it says the same after a restart.
//!
//! Responsible for: whatever a node has said while a cluster was being founded, it remembers (see [`crate::founder`]).

use lockkeeper_wire::store::Candidate;
use prost::Message;

use super::error::OpenError;
use super::format::{Frame, Header, Identity, Kind, PIECE_BYTES_MAX, SECTOR, put_frame, read_frame};
use super::segment::TEMPORARY;
use crate::disk::{Disk, DiskFile};

pub(super) const NAME: &str = "candidate";

/// Of no cluster.
fn identity(candidate: &Candidate) -> Option<Identity> {
    let incarnation = candidate.member.as_ref()?.incarnation.as_slice().try_into().ok()?;
    Some(Identity { cluster: [0; 16], incarnation })
}

/// Writes it, durably, in place of the one before.
pub(super) fn write(disk: &impl Disk, candidate: &Candidate) -> Result<(), OpenError> {
    let identity = identity(candidate)
        .ok_or(OpenError::Unfounded { what: "the id of a candidate's data directory has 16 bytes" })?;
    if candidate.encoded_len() > PIECE_BYTES_MAX {
        return Err(OpenError::Unfounded { what: "its list of nodes is longer than 1 MiB" });
    }
    let temporary = format!("{NAME}{TEMPORARY}");
    let write = || {
        let (header, seed) = Header::plain(Kind::Candidate, identity, 0).encode();
        let mut bytes = header.to_vec();
        let mut frame = Vec::new();
        put_frame(&mut frame, seed, SECTOR, Frame::Candidate, &candidate.encode_to_vec());
        bytes.append(&mut frame);
        let mut file = disk.create(&temporary)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        disk.rename(&temporary, NAME)?;
        disk.sync_names()
    };
    write().map_err(OpenError::io("write", NAME))
}

/// Reads it.
pub(super) fn read(disk: &impl Disk) -> Result<Candidate, OpenError> {
    let file = disk.open(NAME).map_err(OpenError::io("open", NAME))?;
    let (header, seed) = Header::read(&file, NAME, Kind::Candidate, 0, None)?;
    let size = file.size().map_err(OpenError::io("measure", NAME))?;
    let (what, payload, end) = read_frame(&file, NAME, seed, SECTOR, size)?;
    if end != size {
        return Err(OpenError::corrupt(NAME, end, format!("{} bytes follow the record", size - end)));
    }
    match (what, Candidate::decode(payload.as_slice())) {
        (Frame::Candidate, Ok(candidate)) if identity(&candidate) == Some(header.identity) => Ok(candidate),
        _ => {
            Err(OpenError::corrupt(NAME, SECTOR, "no candidate of this header's data directory stands here"))
        }
    }
}
