//! The founding record: to which cluster a data directory belongs, and who the node is in it. Written once.

use lockkeeper_wire::store::Founding;
use prost::Message;

use super::error::OpenError;
use super::format::{Frame, Header, Identity, Kind, PIECE_BYTES_MAX, SECTOR, put_frame, read_frame};
use super::segment::TEMPORARY;
use crate::disk::{Disk, DiskFile};

pub(super) const NAME: &str = "founding";

/// To which data directory the files belong that are written after `founding`.
pub(super) fn identity(founding: &Founding) -> Option<Identity> {
    Some(Identity {
        cluster: founding.cluster.as_slice().try_into().ok()?,
        incarnation: founding.incarnation.as_slice().try_into().ok()?,
    })
}

/// What is wrong with a founding record that is to be written.
pub(super) fn check(founding: &Founding) -> Result<Identity, OpenError> {
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

/// Writes it, durably.
pub(super) fn write(disk: &impl Disk, founding: &Founding, identity: Identity) -> Result<(), OpenError> {
    let temporary = format!("{NAME}{TEMPORARY}");
    let write = || {
        let (header, seed) = Header::plain(Kind::Founding, identity, 0).encode();
        let mut bytes = header.to_vec();
        let mut frame = Vec::new();
        put_frame(&mut frame, seed, SECTOR, Frame::Founding, &founding.encode_to_vec());
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
pub(super) fn read(disk: &impl Disk) -> Result<(Founding, Identity), OpenError> {
    let file = disk.open(NAME).map_err(OpenError::io("open", NAME))?;
    let (header, seed) = Header::read(&file, NAME, Kind::Founding, 0, None)?;
    let size = file.size().map_err(OpenError::io("measure", NAME))?;
    let (what, payload, end) = read_frame(&file, NAME, seed, SECTOR, size)?;
    if end != size {
        return Err(OpenError::corrupt(NAME, end, format!("{} bytes follow the record", size - end)));
    }
    match (what, Founding::decode(payload.as_slice())) {
        (Frame::Founding, Ok(founding)) if identity(&founding) == Some(header.identity) => {
            Ok((founding, header.identity))
        }
        _ => Err(OpenError::corrupt(NAME, SECTOR, "no founding record of this header's cluster stands here")),
    }
}
