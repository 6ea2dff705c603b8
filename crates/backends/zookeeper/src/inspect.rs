//! Inspection: holders, waiters, names in use; and an operator's break.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::leased::{
    Note, NotePermit, Revocation, is_revoked, shown_holder, shown_waiter, untold_holder,
};
use lockkeeper_backend::{BackendError, BackendErrorKind, BreakOrder, Broken, CallError, LockInfo};
use lockkeeper_core::{LockName, ModeKind, Token, TokenStatus};
use tokio::time::Instant;
use zookeeper_client::{Client, Error, MultiReadResult, Stat};

use super::layout::{Contender, NodeLayout, holders};
use super::search::{LockSearch, UsedLock};
use super::session::{CurrentSession, ZooKeeperFailure, by, by_if_exists, failure};
use super::store::{children, owner};

/// How many holders and waiters an inspection lists together.
const SHOWN: usize = 21;
/// Time limit of one call.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// Concurrent reads.
pub(super) const READS: usize = 100;
/// Tries of a break whose hold's node changes meanwhile.
const BREAKS_MAX: usize = 5;

pub(super) struct Inspector {
    pub(super) sessions: Arc<CurrentSession>,
    pub(super) layout: NodeLayout,
}

/// The node of a contender, as read.
pub(super) struct SeenNode {
    pub(super) path: String,
    pub(super) kind: ModeKind,
    pub(super) data: Vec<u8>,
    stat: Stat,
}

impl Inspector {
    pub(super) fn explained(&self, failure: ZooKeeperFailure) -> BackendError {
        match failure {
            ZooKeeperFailure::Refused(error) => error,
            ZooKeeperFailure::Answered(error) => {
                BackendError::new(BackendErrorKind::Operator, format!("ZooKeeper answers: {error}"))
            }
            ZooKeeperFailure::Silent(CallError { refusal: Some(refusal), .. }) => (*refusal).clone(),
            ZooKeeperFailure::Silent(_) => self.sessions.trouble().unwrap_or_else(|| {
                let what = format!("ZooKeeper did not answer within {LIMIT:?}");
                BackendError::new(BackendErrorKind::Unreachable, what)
            }),
        }
    }

    pub(super) async fn lock_info(&self, name: LockName) -> Result<LockInfo, ZooKeeperFailure> {
        let client = self.sessions.client(Instant::now() + LIMIT).await?;
        let folder = self.layout.folder(&name);
        let children = children(&client, &folder, Instant::now() + LIMIT).await?;
        let mut infos = described(&client, vec![(name.clone(), folder, children)]).await?;
        Ok(infos.pop().unwrap_or_else(|| info(name, 0, 0, &[])))
    }

    pub(super) async fn lock_infos(&self, prefix: Option<&LockName>) -> Result<Vec<LockInfo>, BackendError> {
        self.find_locks(prefix).await.map_err(|failure| self.explained(failure))
    }

    async fn find_locks(&self, prefix: Option<&LockName>) -> Result<Vec<LockInfo>, ZooKeeperFailure> {
        let client = self.sessions.client(Instant::now() + LIMIT).await?;
        let mut locks = BTreeMap::new();
        let mut search = LockSearch::begin(&client, &self.layout).await?;
        while let Some(mut found) = search.next().await? {
            found.retain(|(name, ..)| {
                prefix.is_none_or(|prefix| prefix == name || prefix.is_above(name.as_str()))
            });
            for info in described(&client, found).await? {
                locks.insert(info.name.clone(), info);
            }
        }
        Ok(locks.into_values().collect())
    }

    pub(super) async fn check_token(
        &self,
        name: &LockName,
        token: Token,
    ) -> Result<TokenStatus, BackendError> {
        self.check_inner(name, token).await.map_err(|failure| self.explained(failure))
    }

    async fn check_inner(&self, name: &LockName, token: Token) -> Result<TokenStatus, ZooKeeperFailure> {
        let client = self.sessions.client(Instant::now() + LIMIT).await?;
        let folder = self.layout.folder(name);
        let live = live(&holding(&client, &folder).await?);
        if live.contains(&token) {
            return Ok(TokenStatus::Current);
        }
        // The last change of the folder's children (`pzxid`) is an upper bound of the lock's tokens. The
        // folder of an unused lock is removed, which is a change of its parent's children.
        let mut above = folder.as_str();
        let last = loop {
            let stat = by(Instant::now() + LIMIT, client.check_stat(above)).await?;
            match (stat, above.rsplit_once('/')) {
                (Some(stat), _) => break stat.pzxid,
                (None, Some(("", _)) | None) => above = "/",
                (None, Some((parent, _))) => above = parent,
            }
        };
        Ok(match i64::try_from(token.get()) {
            Ok(token) if token <= last => TokenStatus::NotCurrent { live },
            _ => TokenStatus::NeverIssued,
        })
    }

    pub(super) async fn break_hold(&self, order: &BreakOrder) -> Result<Broken, BackendError> {
        for _ in 0..BREAKS_MAX {
            match self.break_inner(order).await {
                Ok(broken) => return Ok(broken),
                // It changed in between.
                Err(ZooKeeperFailure::Answered(Error::NoNode | Error::BadVersion)) => {}
                Err(failure) => return Err(self.explained(failure)),
            }
        }
        let what = "the hold changed each time it was to be broken; try again";
        Err(BackendError::new(BackendErrorKind::Operator, what))
    }

    async fn break_inner(&self, order: &BreakOrder) -> Result<Broken, ZooKeeperFailure> {
        let client = self.sessions.client(Instant::now() + LIMIT).await?;
        let folder = self.layout.folder(&order.name);
        by_if_exists(Instant::now() + LIMIT, client.sync(&folder)).await?;
        let seen = holding(&client, &folder).await?;
        let Some(held) = seen.iter().find(|seen| token_of(&seen.stat) == Some(order.token)) else {
            return Ok(Broken::NotCurrent { live: live(&seen) });
        };
        let version = Some(held.stat.version);
        let deadline = Instant::now() + LIMIT;
        if order.now {
            by(deadline, client.delete(&held.path, version)).await?;
            return Ok(Broken::Done);
        }
        let Some(mut note) = Note::read(&held.data) else {
            return Err(ZooKeeperFailure::Refused(untold_holder()));
        };
        // The first order counts (B3).
        if note.revoked.is_none() {
            note.revoked = Some(Revocation { by: order.by.clone(), reason: order.reason.clone() });
            by(deadline, client.set_data(&held.path, &note.bytes(), version)).await?;
        }
        Ok(Broken::Done)
    }
}

/// Reads the data of contenders, with a time limit for each request. Contenders that are gone or may not be
/// read are left out.
pub(super) async fn read(
    client: &Client,
    paths: Vec<(String, ModeKind)>,
    limit: impl Fn() -> Instant,
) -> Result<Vec<SeenNode>, ZooKeeperFailure> {
    let mut seen = Vec::with_capacity(paths.len());
    let mut paths = paths.into_iter().peekable();
    while paths.peek().is_some() {
        let some: Vec<(String, ModeKind)> = paths.by_ref().take(READS).collect();
        let mut reader = client.new_multi_reader();
        for (path, _) in &some {
            reader.add_get_data(path).map_err(failure)?;
        }
        for ((path, kind), read) in some.into_iter().zip(by(limit(), reader.commit()).await?) {
            if let MultiReadResult::Data { data, stat } = read {
                seen.push(SeenNode { path, kind, data, stat });
            }
        }
    }
    Ok(seen)
}

/// Reads the nodes of all holders of a lock.
async fn holding(client: &Client, folder: &str) -> Result<Vec<SeenNode>, ZooKeeperFailure> {
    let children = children(client, folder, Instant::now() + LIMIT).await?;
    let queue = Contender::queue(&children);
    let holders = queue[..holders(&queue)].iter();
    let paths = holders.map(|one| (format!("{folder}/{}", one.node), one.kind)).collect();
    let mut seen = read(client, paths, || Instant::now() + LIMIT).await?;
    seen.truncate(held(seen.iter()));
    Ok(seen)
}

/// How many of these contenders, which may hold together, do hold: a permit request holds once it has a slot.
fn held<'a>(seen: impl Iterator<Item = &'a SeenNode>) -> usize {
    let has_slot = |seen: &SeenNode| permit_of(seen).is_some_and(|permit| permit.slot.is_some());
    seen.take_while(|seen| seen.kind != ModeKind::Permit || has_slot(seen)).count()
}

fn permit_of(seen: &SeenNode) -> Option<NotePermit> {
    Note::read(&seen.data)?.permit
}

/// Reads the first contenders of locks.
async fn described(client: &Client, locks: Vec<UsedLock>) -> Result<Vec<LockInfo>, ZooKeeperFailure> {
    let mut paths = Vec::new();
    let mut counts = Vec::with_capacity(locks.len());
    for (_, folder, children) in &locks {
        let queue = Contender::queue(children);
        let holders = holders(&queue);
        counts.push((holders, queue.len()));
        // Whether a permit request holds is in its data.
        let is_for_permits = queue.first().is_some_and(|first| first.kind == ModeKind::Permit);
        let shown = if is_for_permits { SHOWN.max(holders) } else { SHOWN };
        paths.extend(queue.iter().take(shown).map(|one| (format!("{folder}/{}", one.node), one.kind)));
    }
    let seen = read(client, paths, || Instant::now() + LIMIT).await?;
    Ok(locks
        .into_iter()
        .zip(counts)
        .map(|((name, folder, _), (held, count))| {
            let folder = format!("{folder}/");
            let is_below = |seen: &&SeenNode| seen.path.starts_with(&folder);
            let mine: Vec<&SeenNode> = seen.iter().filter(is_below).collect();
            info(name, held, count, &mine)
        })
        .collect())
}

/// `seen`: the first contenders of the lock. Of all `count`, the first `held` hold it, or may hold it if they
/// are permit requests.
fn info(name: LockName, held: usize, count: usize, seen: &[&SeenNode]) -> LockInfo {
    let held = match seen.first().map(|first| first.kind) {
        Some(ModeKind::Permit) => self::held(seen.iter().copied().take(held)),
        _ => held,
    };
    let owner = |seen: &SeenNode| owner(&seen.data, seen.stat.ephemeral_owner);
    let (holders, waiters) = seen.split_at(held.min(seen.len()));
    let holder = |seen: &&SeenNode| {
        let note = Note::read(&seen.data);
        let revoked = note.as_ref().and_then(|note| note.revoked.clone());
        shown_holder(token_of(&seen.stat), seen.kind, owner(seen), note, revoked)
    };
    let waiter = |seen: &&SeenNode| shown_waiter(seen.kind, owner(seen), Note::read(&seen.data));
    LockInfo {
        hold_count: held,
        waiter_count: count - held,
        holds: holders.iter().map(holder).collect(),
        waiters: waiters.iter().take(SHOWN).map(waiter).collect(),
        permits: seen.iter().find_map(|seen| Some(permit_of(seen)?.of)),
        ..LockInfo::free(name)
    }
}

/// The tokens of the holders, without those whose holds are being broken.
fn live(holding: &[SeenNode]) -> Vec<Token> {
    holding.iter().filter(|seen| !is_revoked(&seen.data)).filter_map(|seen| token_of(&seen.stat)).collect()
}

fn token_of(stat: &Stat) -> Option<Token> {
    u64::try_from(stat.czxid).ok().and_then(Token::new)
}
