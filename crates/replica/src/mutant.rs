//! Deliberate faults that the simulator must detect: a simulator that misses one of these can't be trusted to
//! find other faults. They are run-time switches, so that one build serves all; production never sets one.

/// A fault; each violates one rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Mutant {
    /// A session expires once a quorum read has confirmed the leader, without waiting until the input that
    /// had arrived was handled (the drain barrier).
    ExpiryWithoutDrain,
    /// A keep-alive is acknowledged although the session's expiry is already proposed.
    KeepAliveAfterEnd,
    /// An attach with a lower number takes over the session.
    OlderAttachAccepted,
    /// A break releases the hold at once, before its holder has given up.
    BreakOpensAtOnce,
    /// A wait limit ends its request by a `Finish`, which does not check whether the request was granted
    /// meanwhile (trace F1).
    TimeOutUnchecked,
    /// The lease clock counts time during which the leader did not run.
    LeaseCountsStalls,
    /// A new leader gives existing sessions no new ttl: their deadlines pass at its zero point.
    ZeroPointForgotten,
    /// A closed stream moves a deadline below the one that a new leader gave.
    LingerBelowFloor,
    /// A retried acquire is executed again, under another seq.
    DedupForgotten,
    /// Commands are proposed in another order than they arrived.
    WrongQueueOrder,
    /// A `Finish` ends a later request of its session instead of the one it names, if there is one.
    FinishEndsAny,
    /// Requests that need a quorum read, such as keep-alives, are answered without one (P6).
    KeepAliveWithoutQuorum,
    /// Requests that need a quorum read are answered by a quorum read that began before they arrived (P6).
    RoundBegunEarlier,
    /// A new leader forgets which holds are under a break.
    RevokedForgotten,
    /// A new leader forgets which holds are recalled (C4).
    RecalledForgotten,
    /// A grant of a cached hold names one token more than its block has (C2).
    BlockTooLong,
    /// A new leader opens closed holds at once.
    ClosuresOpenAtOnce,
    /// A stream closed by the service starts `linger`.
    LingerOnTimeOut,
    /// A node sends its vote, or requests votes, before its own vote is durable (P10).
    VoteNotDurable,
    /// A follower acknowledges entries before they are durable (P10).
    AckBeforeSync,
    /// A proposed batch is recognized by its index alone, even if another term's entry has replaced it.
    AnswerByIndex,
    /// A batch refused by the engine is dropped.
    DroppedBatchSkipped,
    /// A batch refused by the engine is moved behind later commands.
    DroppedBatchLast,
    /// A membership change takes effect before its commit is durable on this node.
    MembersAppliedEarly,
    /// A follower answers `CheckToken` calls.
    FollowerAnswersCheckToken,
    /// No leader ends a joint configuration, so a removal is never completed.
    NeverLeavesJoint,
    /// A leader keeps no entries for followers that lag, so the entries after a snapshot are gone when a
    /// follower has received the snapshot.
    TailNotPinned,
    /// A received snapshot replaces the table although the consensus has newer entries (P2).
    SnapshotGoesBack,
    /// Nodes with an even id drop session labels, so their tables diverge.
    LabelsForgotten,
    /// A new leader answers before the first entry of its own term is applied, so it may not have applied
    /// what earlier leaders acknowledged.
    AckBeforeOwnEntry,
    /// Newer rules take effect as soon as the leader supports them, even if another member does not (V1).
    RulesRaisedUnasked,
    /// A session expires at its deadline without a quorum read or a drain of its input.
    ExpiryAtDeadline,
    /// The first tokens of a table without history count from 1, so an earlier table may have issued the same
    /// ones (T1).
    TokensFromOne,
    /// A leader does not continue the backlog that commands leave (M2).
    ResumeForgotten,
    /// A turn applies all committed entries, without a limit.
    TurnUnbounded,
    /// All unconfirmed ends are sent at once when a client attaches.
    EndsToldAtOnce,
    /// A keep-alive by a call is acknowledged without a quorum read (P6).
    CallWithoutQuorum,
    /// A grant does not answer the call that waits for the changes of the session's requests.
    GrantNotPolled,
    /// Any secret attaches a session.
    SecretUnchecked,
}
