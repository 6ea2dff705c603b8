//! `Backup`: sends a stored snapshot to the caller.
//!
//! Responsible for: a backup includes every change that was answered before the call; reading it from the
//! disk blocks no other work; and the disk is read no faster than the caller receives, so that only a few
//! pieces are in memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper_replica::storage::{BackupParts, OpenError};
use lockkeeper_replica::{Answer, Question};
use lockkeeper_wire::store::BackupHead;
use lockkeeper_wire::v1::{BackupResponse, Role};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::Calls;
use crate::access::Identity;
use crate::disk::DataDirectory;
use crate::front::statuses::{refusal, unexpected};

/// Most pieces that wait to be sent, of about 1 MiB each.
const PARTS_WAITING_MAX: usize = 4;
/// A stored snapshot is removed when a newer one replaces it, perhaps before it is opened here; then the
/// backup is tried again. One such loss is rare, since much must be logged between two snapshots.
const ATTEMPTS: usize = 3;

/// The parts of a backup, as they are sent.
pub(in crate::front) struct Parts(Receiver<Result<BackupResponse, Status>>);

impl tonic::codegen::tokio_stream::Stream for Parts {
    type Item = Result<BackupResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

impl Calls {
    /// Begins a backup. A node that does not lead returns an error at once, so that the caller can go to the
    /// leader. Storing the snapshot may take long, and continues after this function has returned.
    pub(super) async fn backup(
        self: &Arc<Self>,
        metadata: &MetadataMap,
        caller: &Identity,
    ) -> Result<Parts, Status> {
        let Answer::Status(status) = self.ask(metadata, caller, Question::Status).await? else {
            return Err(unexpected());
        };
        if status.role() != Role::Leader {
            return Err(refusal(Answer::NotLeader { leader: status.leader }, &self.replica.clients()));
        }
        let (sender, parts) = channel(PARTS_WAITING_MAX);
        let (calls, caller) = (self.clone(), caller.clone());
        tokio::spawn(async move {
            match calls.store(status.node, &caller).await {
                // The blocking task ends by itself, also if the caller no longer reads.
                Ok(backup) => drop(tokio::task::spawn_blocking(move || send(backup, &sender))),
                // Sending fails if the caller is gone.
                Err(status) => drop(sender.send(Err(status)).await),
            }
        });
        Ok(Parts(parts))
    }

    /// Makes the replica store a snapshot for this node itself, which must lead, and opens it.
    pub(in crate::front) async fn own_backup(self: &Arc<Self>) -> Result<BackupParts<DataDirectory>, Status> {
        self.store(self.about.node, &Identity::ANONYMOUS).await
    }

    /// Makes the replica store a snapshot, then opens the snapshot.
    async fn store(
        self: &Arc<Self>,
        node: u64,
        caller: &Identity,
    ) -> Result<BackupParts<DataDirectory>, Status> {
        let snapshots =
            self.snapshots.get().ok_or_else(|| Status::unavailable("this node has no data yet"))?;
        let mut failed = None;
        for _ in 0..ATTEMPTS {
            // The time is read before the snapshot is taken: a restore assumes that tokens may have been
            // issued since this time.
            let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let answer = self.ask(&MetadataMap::new(), caller, Question::Backup).await?;
            let Answer::BackupStored { index, last_token } = answer else { return Err(unexpected()) };
            let head = BackupHead {
                index,
                last_token,
                taken_us: u64::try_from(taken.as_micros()).unwrap_or(u64::MAX),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                node,
                ..BackupHead::default()
            };
            match snapshots.backup(head) {
                Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    failed = Some(source);
                }
                opened => return opened.map_err(|error| unreadable(&error)),
            }
        }
        Err(Status::unavailable(format!(
            "{ATTEMPTS} snapshots were gone before they could be read ({}); try again",
            failed.map(|error| error.to_string()).unwrap_or_default()
        )))
    }
}

/// Reads the backup and sends it, no faster than the caller receives it.
fn send(mut backup: BackupParts<DataDirectory>, parts: &Sender<Result<BackupResponse, Status>>) {
    loop {
        let part = match backup.next_part() {
            Ok(Some(part)) => Ok(BackupResponse { part }),
            Ok(None) => return,
            Err(error) => Err(unreadable(&error)),
        };
        let is_last = part.is_err();
        if parts.blocking_send(part).is_err() || is_last {
            return;
        }
    }
}

fn unreadable(error: &OpenError) -> Status {
    Status::data_loss(format!("the node can't read the snapshot that it has stored: {error}"))
}
