//! Faults that are built in on purpose. The simulator must find each of them: a check that finds none of these can't
//! be trusted to find others. Run-time switches, so that one build serves all; production never sets one.

/// One rule left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Mutant {
    /// A session ends at its deadline by the leader's clock alone, without waiting for the input that had arrived.
    ExpiryWithoutDrain,
    /// A keep-alive is acknowledged though the session's end is proposed already.
    KeepAliveAfterEnd,
    /// An attach with a lower number takes the session over.
    OlderAttachAccepted,
    /// A broken hold is opened at once, before its holder has given up.
    BreakOpensAtOnce,
    /// A wait limit ends its request by a `Finish`, and nobody looks whether it was granted meanwhile (trace F1).
    TimeOutUnchecked,
    /// The lease clock counts time in which the leader did not run.
    LeaseCountsStalls,
    /// A new leader gives the sessions that it finds no ttl.
    ZeroPointForgotten,
    /// A closed stream cuts a deadline below the one that a new leader gave.
    LingerBelowFloor,
    /// An acquire that is repeated runs anew, under another number.
    DedupForgotten,
    /// What came later goes into the log first.
    WrongQueueOrder,
    /// A `Finish` ends the latest hold of its session, not the one that it names.
    FinishEndsAny,
    /// A sign of life is acknowledged without asking a majority (P6).
    KeepAliveWithoutQuorum,
    /// A sign of life goes with a round that had begun before it came (P6).
    RoundBegunEarlier,
    /// A new leader forgets which holds are under a break.
    RevokedForgotten,
    /// A new leader opens closed holds at once.
    ClosuresOpenAtOnce,
    /// A stream that this side has closed starts `linger`.
    LingerOnTimeOut,
    /// A node says for whom it votes before that is on its disk (P10).
    VoteNotDurable,
    /// A follower says that it has entries before they are on its disk (P10).
    AckBeforeSync,
    /// A batch is known by its place in the log alone, whoever's it is by now.
    AnswerByIndex,
    /// A batch that can't be proposed now is let go of.
    DroppedBatchSkipped,
    /// A batch that can't be proposed now goes behind what came later.
    DroppedBatchLast,
    /// A change of members counts before it is durable here that it is committed.
    MembersAppliedEarly,
    /// A follower answers what a token is worth.
    FollowerAnswersCheckToken,
    /// A leader that finds a removal half done leaves it so.
    NeverLeavesJoint,
    /// A leader lets go of what a follower will need after the snapshot that is on its way.
    TailNotPinned,
    /// A received snapshot takes the table's place though the consensus knows newer (P2).
    SnapshotGoesBack,
    /// Nodes with an even number forget what sessions are called: their tables are others.
    LabelsForgotten,
    /// A new leader answers before the first entry of its own term is applied: what an old one had proposed is news to it.
    AckBeforeOwnEntry,
    /// Newer rules count as soon as the leader knows them, whoever else does (V1).
    RulesRaisedUnasked,
    /// A session ends at its deadline: no majority is asked, and no input is waited for.
    ExpiryAtDeadline,
    /// The first tokens of a table without history count from 1, as those of another one before it may have (T1).
    TokensFromOne,
    /// A leader leaves work that commands have left (M2).
    ResumeForgotten,
    /// A turn applies all that is committed, however much that is.
    TurnUnbounded,
    /// All ends that a client has not confirmed are sent at once when it attaches.
    EndsToldAtOnce,
}
