//! The checks of a node's answers: on streams, to calls, and to operators.

use std::collections::BTreeMap;

use lockkeeper_core::{Command, SessionId};
use lockkeeper_replica::{Answer, AskId, CallId, Question, StreamId};
use lockkeeper_wire::v1;
use lockkeeper_wire::v1::server_item::What;

use super::CheckResult;
use super::log::AgreedLog;
use super::members::Taking;
use super::reply_checker;
use super::{ObservedNode, Oracle, index_of};
use crate::clock::Nanos;
use crate::core::Id;

/// P5 for sessions that live by calls: no session expires while its client may consider it live.
#[derive(Default)]
pub(super) struct CallLeases {
    /// Until when the client of each session may consider it live.
    until: BTreeMap<u64, Nanos>,
    /// When each session's expiry was first applied.
    expired: BTreeMap<u64, Nanos>,
}

impl CallLeases {
    /// To be called when the client has received an answer.
    fn renewed(&mut self, session: u64, until: Nanos) -> CheckResult {
        let known = self.until.entry(session).or_default();
        *known = until.max(*known);
        match self.expired.get(&session) {
            Some(at) if *at < until => Err(("P5", format!("s{session} expired {} ns too early", until - at))),
            _ => Ok(()),
        }
    }

    /// To be called when the first node has applied these commands.
    pub(super) fn applied(&mut self, now: Nanos, commands: &[Command]) -> CheckResult {
        for command in commands {
            let Command::ExpireSession { session } = command else { continue };
            self.expired.entry(session.0).or_insert(now);
            if let Some(until) = self.until.get(&session.0).filter(|until| now < **until) {
                return Err(("P5", format!("{session} expires {} ns too early", until - now)));
            }
        }
        Ok(())
    }
}

/// Whether an entry would survive a power cut now.
fn is_durable(nodes: &[ObservedNode], log: &AgreedLog, members: &Taking, index: u64) -> bool {
    let Some(term) = log.agreed(index) else { return false };
    members.is_minority(|node| {
        let of = nodes.get(index_of(node));
        of.is_some_and(|of| !of.is_wiped && !of.copy.is_durable(index, term))
    })
}

impl Oracle {
    /// Checks items that a node sends to a client.
    pub(crate) fn sent(&mut self, now: Nanos, node: Id, stream: StreamId, items: &[v1::ServerItem]) {
        let (nodes, log, members) = (&self.nodes, &self.log, &self.members);
        let has = |index| is_durable(nodes, log, members, index);
        let mut verdict = reply_checker::ends_of_attach(items, self.budgets.ends_per_part);
        for item in items {
            let term = nodes[index_of(node)].silence.leads();
            verdict = verdict.and_then(|()| self.rounds.sent(node, term, stream, item, &self.log));
            verdict = verdict.and_then(|()| nodes[index_of(node)].silence.may_tell(item));
            verdict = verdict.and_then(|()| self.replies.item(item, &self.history, has));
            verdict = verdict.and_then(|()| self.tells_recalls(node, item));
            if let Some(v1::server_item::What::Attached(_) | v1::server_item::What::Opened(_)) = item.what {
                // From here on the session has its full ttl again.
                self.excused.remove(&item.session);
            }
        }
        for item in items {
            self.learn_secret(item);
            self.nodes[index_of(node)].silence.sent(stream, item);
        }
        self.judge(now, verdict);
    }

    /// C4: an acknowledgement names the session's holds that are recalled.
    fn tells_recalls(&self, node: Id, item: &v1::ServerItem) -> CheckResult {
        let told = match &item.what {
            Some(What::Attached(attached)) => &attached.recalled,
            Some(What::KeptAlive(alive)) => &alive.recalled,
            _ => return Ok(()),
        };
        let through = self.nodes[index_of(node)].put_out;
        match self.history.recalled_by(SessionId(item.session), through).find(|seq| !told.contains(&seq.0)) {
            None => Ok(()),
            Some(seq) => Err((
                "C4",
                format!("node {node} tells s{} that {told:?} are recalled, and not {seq}", item.session),
            )),
        }
    }

    fn learn_secret(&mut self, item: &v1::ServerItem) {
        if let Some(What::Opened(opened)) = &item.what {
            self.by_secret.insert(opened.secret_prefix, item.session);
        }
    }

    /// To be called when an operator sends a request to a node.
    pub(crate) fn asked(&mut self, ask: AskId, question: &Question) {
        self.reads.asked(ask, question, &self.history);
    }

    /// Checks a node's answer to an operator.
    pub(crate) fn answered(&mut self, now: Nanos, node: Id, ask: AskId, answer: &Answer) {
        let term = self.nodes[index_of(node)].silence.leads();
        let verdict = match answer {
            // Only these reads are checked. Answers to commands of the log need no leader: any node that
            // applies the command may send them.
            Answer::Described(_) | Answer::Listed(_) | Answer::Sessions(_) | Answer::Checked(_) => {
                self.rounds.read(node, term, ask, &self.log)
            }
            _ => Ok(()),
        };
        let verdict = verdict.and_then(|()| self.reads.answered(ask, answer, &self.history));
        self.judge(now, verdict);
    }

    /// Checks a node's answer to a call. It proves that the node led (P6), unless it is a refusal.
    pub(crate) fn called(&mut self, now: Nanos, node: Id, call: CallId, response: &v1::SessionCallResponse) {
        let Some(item) = &response.item else { return };
        if matches!(item.what, Some(What::Refused(_) | What::SessionGone(_))) {
            return;
        }
        let term = self.nodes[index_of(node)].silence.leads();
        let (nodes, log, members) = (&self.nodes, &self.log, &self.members);
        let has = |index| is_durable(nodes, log, members, index);
        let verdict = self
            .rounds
            .called(node, term, call, log)
            .and_then(|()| nodes[index_of(node)].silence.may_answer_call(item.session))
            .and_then(|()| self.replies.item(item, &self.history, has));
        let granted = response.granted.iter().map(|it| v1::ServerItem {
            session: item.session,
            seq: it.seq,
            what: it.grant.clone().map(What::Granted),
        });
        let verdict = granted.fold(verdict, |verdict, item| {
            verdict.and_then(|()| self.replies.item(&item, &self.history, has))
        });
        self.learn_secret(item);
        self.nodes[index_of(node)].silence.renewed_by_call(item.session);
        self.judge(now, verdict);
    }

    /// Whether a node may answer the calls of a session, as far as its end goes.
    pub(crate) fn may_answer_call(&self, node: Id, session: u64) -> bool {
        self.nodes[index_of(node)].silence.may_answer_call(session).is_ok()
    }

    /// To be called when a client has received an answer to a call: it may consider its session live until
    /// `until`.
    pub(crate) fn renewed(&mut self, now: Nanos, session: u64, until: Nanos) {
        let verdict = self.call_leases.renewed(session, until);
        self.judge(now, verdict);
    }
}
