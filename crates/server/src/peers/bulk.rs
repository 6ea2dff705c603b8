//! Snapshots between nodes, each on a connection of its own, with a thread of its own at either end.
//!
//! Responsible for: heartbeats never queue behind a snapshot, and neither the replica's thread nor the
//! front's waits for one. For each snapshot to send, exactly one success or failure is reported to the
//! consensus, which sends that follower nothing else until then. A received snapshot is written under a
//! temporary name, verified to its end and decoded into a table before it is handed to the replica.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use lockkeeper_core::Restorer;
use lockkeeper_replica::disk::Disk;
use lockkeeper_replica::storage::{PIECE_BYTES_MAX, Sealed, SnapshotWriter, Snapshots};
use lockkeeper_replica::{Event, Received};
use lockkeeper_wire::peer::snapshot_part::What;
use lockkeeper_wire::peer::{Lane, SnapshotAnswer, SnapshotOffer, SnapshotPart};
use lockkeeper_wire::store::{SnapshotHead, SnapshotTail};
use prost::Message;
use socket2::SockRef;
use tokio::sync::{mpsc as tokio_mpsc, oneshot};

use super::directory::Directory;
use super::handshake;
use crate::disk_worker::DiskTaskResult;
use crate::inbox::Inbox;
use crate::tls::Transport;

/// Time limits of the sender and of the receiver.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// The time without progress after which the other side, or the network, counts as gone.
    stalled: Duration,
    /// The time for the receiver's last checks and for its replica to install the table: seconds, where there
    /// are millions of locks.
    settles: Duration,
    /// The pause between a failure and the next attempt.
    pause: Duration,
}

/// The values in production; only tests use others.
pub(crate) const PATIENCE: Patience = Patience {
    stalled: Duration::from_secs(10),
    settles: Duration::from_secs(60),
    pause: Duration::from_millis(500),
};

/// The longest message: a piece and its envelope. An offer, which lists the cluster's members, is shorter.
const MESSAGE_BYTES_MAX: usize = PIECE_BYTES_MAX + 1024;

/// The file of a received snapshot, until the replica installs or discards it.
pub(crate) struct Arrived<D: Disk> {
    pub(crate) head: SnapshotHead,
    pub(crate) sealed: Sealed<D>,
    /// Signalled when the replica has installed or discarded the snapshot.
    pub(crate) settled: Sender<()>,
}

/// The state that sending and receiving share.
pub(crate) struct Bulk<D: Disk> {
    pub(crate) directory: Arc<Directory>,
    pub(crate) snapshots: Snapshots<D>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) done: Sender<DiskTaskResult<D>>,
    /// Whether a snapshot is being received; only one at a time, since each takes disk and processor time.
    pub(crate) is_receiving: AtomicBool,
    pub(crate) patience: Patience,
}

impl<D: Disk + Sync> Bulk<D> {
    /// Sends the snapshots that the replica offers, for as long as it is polled.
    pub(super) async fn run(self: Arc<Self>, mut offers: tokio_mpsc::UnboundedReceiver<Box<SnapshotOffer>>) {
        while let Some(offer) = offers.recv().await {
            tokio::spawn(self.clone().send(offer));
        }
    }

    async fn send(self: Arc<Self>, offer: Box<SnapshotOffer>) {
        let (to, begun) = (offer.to, Instant::now());
        let index = offer.head.as_ref().map_or(0, |head| head.index);
        let sent = self.try_send(offer).await;
        match &sent {
            Ok(bytes) => {
                let ms = begun.elapsed().as_millis();
                tracing::info!(
                    to,
                    index,
                    bytes,
                    ms,
                    "node {to} has got a snapshot of {bytes} bytes in {ms} ms"
                );
            }
            Err(error) => {
                tracing::warn!(to, index, %error, "a snapshot did not reach node {to}, it is tried again: {error}");
                tokio::time::sleep(self.patience.pause).await;
            }
        }
        self.inbox.push(Event::SnapshotSent { to, arrived: sent.is_ok() });
        self.inbox.ring();
    }

    async fn try_send(&self, offer: Box<SnapshotOffer>) -> io::Result<u64> {
        let to = offer.to;
        let addresses = self.directory.addresses().remove(&to).unwrap_or_default();
        let opened = handshake::open_any(&addresses, to, Lane::Snapshot, &*self.directory).await;
        let (stream, _) = opened.map_err(|why| io::Error::other(why.to_string()))?;
        let patience = self.patience;
        let transport = blocking(Transport::of(stream)?, patience)?;
        let (sender, sent) = oneshot::channel();
        let snapshots = self.snapshots.clone();
        std::thread::Builder::new().name("lockkeeper-send".to_owned()).spawn(move || {
            // Fails only while the process ends.
            let _ = sender.send(transmit(transport, &snapshots, *offer, patience));
        })?;
        sent.await.unwrap_or_else(|_| Err(io::Error::other("the thread that sent it has ended")))
    }

    /// Receives, on this connection, a snapshot that node `from` sends.
    pub(super) fn receive(self: &Arc<Self>, from: u64, transport: Transport<TcpStream>) {
        let bulk = self.clone();
        let begun = std::thread::Builder::new().name("lockkeeper-receive".to_owned()).spawn(move || {
            let taken =
                blocking(transport, bulk.patience).and_then(|mut transport| bulk.take(from, &mut transport));
            if let Err(error) = taken {
                tracing::warn!(from, %error, "a snapshot from node {from} did not arrive: {error}");
            }
        });
        if let Err(error) = begun {
            tracing::warn!(from, %error, "no thread to take a snapshot with: {error}");
        }
    }

    fn take(&self, from: u64, socket: &mut Transport<TcpStream>) -> io::Result<()> {
        if self.is_receiving.swap(true, Ordering::AcqRel) {
            return Err(io::Error::other("another one is on its way"));
        }
        let result = self.take_one(from, socket);
        self.is_receiving.store(false, Ordering::Release);
        result
    }

    fn take_one(&self, from: u64, socket: &mut Transport<TcpStream>) -> io::Result<()> {
        let offer: SnapshotOffer = read(socket)?;
        let head = offer.head.clone().filter(|_| (offer.from, offer.to) == (from, self.directory.node()));
        let head = head.ok_or_else(|| invalid("it is not for this node"))?;
        tracing::info!(from, index = head.index, bytes = offer.bytes, "node {from} sends a snapshot");
        let mut writer = self.snapshots.begin(&head)?;
        let (tail, restorer) = match pieces(socket, &mut writer) {
            Ok(all) => all,
            Err(error) => {
                // If the file can't be removed now, the next start removes it.
                drop(writer.abandon());
                return Err(error);
            }
        };
        let bytes = tail.bytes;
        // Decoded before the file is sealed, so that the file of an invalid snapshot is removed at once.
        let table = match restorer.finish() {
            Ok(table) => table,
            Err(error) => {
                drop(writer.abandon());
                return Err(io::Error::other(error));
            }
        };
        let sealed = writer.seal(&tail)?;
        let (settled, settles) = mpsc::channel();
        let received = Box::new(Received { offer, table, bytes });
        self.done
            .send(DiskTaskResult::Received(received, Box::new(Arrived { head, sealed, settled })))
            .map_err(|_| io::Error::other("this node stops"))?;
        self.inbox.ring();
        settles
            .recv_timeout(self.patience.settles)
            .map_err(|_| io::Error::other("this node does not come to take it"))?;
        write(socket, &SnapshotAnswer {})
    }
}

/// Receives the messages after the offer: the pieces, and the tail.
fn pieces<D: Disk>(
    socket: &mut Transport<TcpStream>,
    writer: &mut SnapshotWriter<D>,
) -> io::Result<(SnapshotTail, Restorer)> {
    let mut restorer = Restorer::new(getrandom::u64()?);
    loop {
        match read::<SnapshotPart>(socket)?.what {
            Some(What::Piece(piece)) => {
                restorer.push(&piece).map_err(io::Error::other)?;
                writer.piece(&piece)?;
            }
            Some(What::Tail(tail)) => {
                let digest = restorer.digest().map(|digest| digest.to_le_bytes().to_vec());
                if digest.as_ref() != Some(&tail.digest) {
                    return Err(invalid("its digest is another than the one that its sender says"));
                }
                return Ok((tail, restorer));
            }
            None => return Err(invalid("a part that this version does not know")),
        }
    }
}

/// Reads the stored snapshot, verifies it, and sends it; returns the number of bytes.
fn transmit<D: Disk>(
    mut socket: Transport<TcpStream>,
    snapshots: &Snapshots<D>,
    mut offer: SnapshotOffer,
    patience: Patience,
) -> io::Result<u64> {
    let index = offer.head.as_ref().map_or(0, |head| head.index);
    let mut reader = snapshots.open(index).map_err(io::Error::other)?;
    if offer.head.as_ref() != Some(reader.head()) {
        return Err(io::Error::other("the stored one is another by now"));
    }
    offer.bytes = reader.file_bytes();
    write(&mut socket, &offer)?;
    while let Some(piece) = reader.next_piece().map_err(io::Error::other)? {
        write(&mut socket, &SnapshotPart { what: Some(What::Piece(piece)) })?;
    }
    let tail = reader.tail().cloned();
    write(&mut socket, &SnapshotPart { what: tail.map(What::Tail) })?;
    socket.socket().set_read_timeout(Some(patience.settles + patience.stalled))?;
    let SnapshotAnswer {} = read(&mut socket)?;
    Ok(offer.bytes)
}

fn blocking(transport: Transport<TcpStream>, patience: Patience) -> io::Result<Transport<TcpStream>> {
    let socket = transport.socket();
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(patience.stalled))?;
    socket.set_write_timeout(Some(patience.stalled))?;
    // Longer than the limit of the connections for messages: a receiver with a slow disk keeps the sender
    // waiting.
    #[cfg(target_os = "linux")]
    SockRef::from(socket).set_tcp_user_timeout(Some(patience.stalled))?;
    Ok(transport)
}

fn write(socket: &mut Transport<TcpStream>, message: &impl Message) -> io::Result<()> {
    let mut bytes = (message.encoded_len() as u32).to_le_bytes().to_vec();
    message.encode(&mut bytes).map_err(io::Error::other)?;
    socket.write_all(&bytes)?;
    socket.flush()
}

fn read<M: Message + Default>(socket: &mut Transport<TcpStream>) -> io::Result<M> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(invalid("a part of it is too long"));
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes)?;
    M::decode(bytes.as_slice()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
