//! One session: its live requests, and the final answers its client may not have yet (P7).

use std::collections::{BTreeMap, BTreeSet};

use super::request::RequestId;
use crate::reply::{End, Reply};
use crate::types::Seq;

pub(super) struct Session {
    pub(super) secret_hash: [u8; 32],
    pub(super) ttl_ms: u64,
    pub(super) lock_delay_ms: u64,
    pub(super) linger_ms: u64,
    pub(super) label: Box<str>,
    pub(super) highest: Seq,
    pub(super) done_through: Seq,
    pub(super) live: BTreeMap<Seq, RequestId>,
    kept: BTreeMap<Seq, Kept>,
    /// `(until, seq)` of every kept answer that has an until: what a rising `done_through` lets go, in order.
    by_until: BTreeSet<(Seq, Seq)>,
}

struct Kept {
    reply: Reply,
    until: Option<Seq>,
}

impl Session {
    pub(super) fn new(open: &crate::OpenSession) -> Self {
        Self {
            secret_hash: open.secret_hash,
            ttl_ms: open.ttl_ms,
            lock_delay_ms: open.lock_delay_ms,
            linger_ms: open.linger_ms,
            label: open.label.clone(),
            highest: Seq(0),
            done_through: Seq(0),
            live: BTreeMap::new(),
            kept: BTreeMap::new(),
            by_until: BTreeSet::new(),
        }
    }

    /// R1: taken before the command, never goes down, raises the highest seq seen.
    pub(super) fn take_done_through(&mut self, done_through: Seq) {
        self.see(done_through);
        if done_through <= self.done_through {
            return;
        }
        self.done_through = done_through;
        while let Some(&(until, seq)) = self.by_until.first()
            && until <= done_through
        {
            self.by_until.pop_first();
            self.kept.remove(&seq);
        }
    }

    /// Raises the highest seq seen.
    pub(super) fn see(&mut self, seq: Seq) {
        self.highest = self.highest.max(seq);
    }

    /// Keeps a final answer; not at all if the client already has what it is kept for.
    pub(super) fn keep(&mut self, seq: Seq, reply: Reply, until: Option<Seq>) {
        match until {
            Some(until) if until <= self.done_through => return,
            Some(until) => {
                self.by_until.insert((until, seq));
            }
            None => {}
        }
        self.kept.insert(seq, Kept { reply, until });
    }

    pub(super) fn kept(&self, seq: Seq) -> Option<&Reply> {
        self.kept.get(&seq).map(|kept| &kept.reply)
    }

    /// How a request that is no longer live ended, for the `Finish` numbered `by`; the answer is then kept for that
    /// `Finish` too (R3).
    pub(super) fn finish_kept(&mut self, target: Seq, by: Seq) -> End {
        let Some(kept) = self.kept.remove(&target) else { return End::Gone };
        if let Some(until) = kept.until {
            self.by_until.remove(&(until, target));
        }
        let end = match kept.reply {
            Reply::Finished(end) => end,
            _ => End::NotAcquired,
        };
        self.keep(target, kept.reply, Some(kept.until.map_or(by, |until| until.max(by))));
        end
    }

    pub(super) fn kept_count(&self) -> usize {
        self.kept.len()
    }

    /// Every kept answer, by seq.
    pub(super) fn kept_answers(&self) -> impl Iterator<Item = (Seq, &Reply, Option<Seq>)> {
        self.kept.iter().map(|(&seq, kept)| (seq, &kept.reply, kept.until))
    }
}
