//! The mutants, which are faults built in on purpose, and the promises whose checks must find them. All are
//! switched at run time.
//!
//! The replica's mutants are switches in the production code (`lockkeeper_replica::mutant`). The others are
//! faults of the simulation around it: a node that replies too early, a client that computes a late deadline,
//! a resource that does not check tokens.
//!
//! Two mutants of the replica are not listed. `TailNotPinned`: in the simulator, a follower that needs one
//! snapshot after another catches up as soon as the clients are idle; the replica's cluster tests cover it
//! step by step. `DroppedBatchLast`: pending commands always fit into one batch here, so their order can't
//! change.

use lockkeeper_replica::mutant::Mutant as OfReplica;

/// Where the rule is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MutantLocation {
    /// In the replica.
    Replica(OfReplica),
    /// `Write::synced` is called without a sync.
    SyncSkipped,
    /// Output that depends on a write is sent before the write is durable.
    ReplyBeforeSync,
    /// A guard's deadline counts from the arrival of the acknowledgement instead of the sending of the
    /// keep-alive.
    DeadlineFromReceipt,
    /// A client's clock is slower than the margin of P5 allows.
    DriftBeyondMargin,
    /// The session of a client with `linger` keeps its full lease deadline after its stream has ended.
    DetachUnheard,
    /// A retried command gets a new number.
    RetryRenumbered,
    /// A guard reports "held" after its loss was signalled.
    LossIgnored,
    /// A future that is dropped does not withdraw its request.
    DropForgotten,
    /// A grant extends the lease deadline like a keep-alive's acknowledgement.
    GrantRenews,
    /// A node reads the clock before it reads the input that arrived while it was stopped.
    ClockBeforeInput,
    /// The log is reset before the snapshot that replaces it is published.
    InstallOrderSwapped,
    /// A node whose disk is lost restarts under its old identity, with an empty log.
    WipedNodeVotes,
    /// All sections of a cached hold use its first token.
    TokenReused,
    /// A client's cache is not told of recalls.
    RecallUnheard,
    /// A client's cache is not told of lost holds.
    CachedOutlivesSession,
    /// A client takes the answer that its try is queued for busy.
    QueuedIsBusy,
    /// The resource does not check tokens.
    NoFence,
    /// The resource checks tokens of writes only; sections do not enter the fence.
    FenceWithoutEnter,
}

/// One built-in fault.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// The value of `--mutant`.
    pub name: &'static str,
    /// Where the rule is left out.
    pub location: MutantLocation,
    /// Description of the missing rule.
    pub what: &'static str,
    /// The promises whose checks may find the mutant, as numbered in a failure report.
    pub caught_by: &'static [&'static str],
    /// A seed that tests try first, because a check has found the mutant with it. Any change of the simulator
    /// or of the code that runs in it may change that.
    pub seed: u64,
}

/// All mutants.
pub const ALL: &[Mutant] = &[
    Mutant {
        name: "expiry-without-drain",
        location: MutantLocation::Replica(OfReplica::ExpiryWithoutDrain),
        what: "a silent session ends though its keep-alives wait in a socket",
        caught_by: &["P9"],
        seed: 2,
    },
    Mutant {
        name: "labels-forgotten",
        location: MutantLocation::Replica(OfReplica::LabelsForgotten),
        what: "some nodes make other tables of the same log",
        caught_by: &["P1", "P10"],
        seed: 0,
    },
    Mutant {
        name: "older-attach-accepted",
        location: MutantLocation::Replica(OfReplica::OlderAttachAccepted),
        what: "a delayed attach takes the session over from a later one",
        caught_by: &["P5", "P7", "P9"],
        seed: 5,
    },
    Mutant {
        name: "break-opens-at-once",
        location: MutantLocation::Replica(OfReplica::BreakOpensAtOnce),
        what: "a broken hold opens before its holder has had its ttl to stop",
        caught_by: &["P4", "P5"],
        seed: 9,
    },
    Mutant {
        name: "time-out-unchecked",
        location: MutantLocation::Replica(OfReplica::TimeOutUnchecked),
        what: "a wait limit ends the request by a finish, also when it was granted meanwhile (trace F1)",
        caught_by: &["P4"],
        seed: 0,
    },
    Mutant {
        name: "lease-counts-stalls",
        location: MutantLocation::Replica(OfReplica::LeaseCountsStalls),
        what: "time in which the node did not run counts against its sessions",
        caught_by: &["P4", "P9"],
        seed: 8,
    },
    Mutant {
        name: "zero-point-forgotten",
        location: MutantLocation::Replica(OfReplica::ZeroPointForgotten),
        what: "a new leader gives its sessions no full ttl",
        caught_by: &["P5", "P9"],
        seed: 2,
    },
    Mutant {
        name: "linger-below-floor",
        location: MutantLocation::Replica(OfReplica::LingerBelowFloor),
        what: "a closed stream cuts a deadline below the one that a new leader gave",
        caught_by: &["P9"],
        seed: 2,
    },
    Mutant {
        name: "dedup-forgotten",
        location: MutantLocation::Replica(OfReplica::DedupForgotten),
        what: "an acquire that is repeated runs anew",
        caught_by: &["P2", "P7", "P8"],
        seed: 2,
    },
    Mutant {
        name: "wrong-queue-order",
        location: MutantLocation::Replica(OfReplica::WrongQueueOrder),
        what: "what came later goes into the log first",
        caught_by: &["P7", "P8"],
        seed: 0,
    },
    Mutant {
        name: "finish-ends-any",
        location: MutantLocation::Replica(OfReplica::FinishEndsAny),
        what: "a finish ends the session's latest hold, not the one that it names",
        caught_by: &["P4", "P7"],
        seed: 0,
    },
    Mutant {
        name: "keep-alive-after-end",
        location: MutantLocation::Replica(OfReplica::KeepAliveAfterEnd),
        what: "a sign of life is acknowledged though the session's end is proposed",
        caught_by: &["P5"],
        seed: 16,
    },
    Mutant {
        name: "keep-alive-without-quorum",
        location: MutantLocation::Replica(OfReplica::KeepAliveWithoutQuorum),
        what: "a leader acknowledges without asking a majority whether it still leads",
        caught_by: &["P5", "P6"],
        seed: 19,
    },
    Mutant {
        name: "round-begun-earlier",
        location: MutantLocation::Replica(OfReplica::RoundBegunEarlier),
        what: "a sign of life goes with a round that had begun before it came",
        caught_by: &["P5", "P6"],
        seed: 19,
    },
    Mutant {
        name: "revoked-forgotten",
        location: MutantLocation::Replica(OfReplica::RevokedForgotten),
        what: "a new leader forgets which holds are under a break",
        caught_by: &["P4", "P5"],
        seed: 247,
    },
    Mutant {
        name: "closures-open-at-once",
        location: MutantLocation::Replica(OfReplica::ClosuresOpenAtOnce),
        what: "a new leader opens closed holds at once",
        caught_by: &["P9"],
        seed: 0,
    },
    Mutant {
        name: "linger-on-time-out",
        location: MutantLocation::Replica(OfReplica::LingerOnTimeOut),
        what: "a stream that the node closed starts `linger`",
        caught_by: &["P5", "P9"],
        seed: 1,
    },
    Mutant {
        name: "vote-not-durable",
        location: MutantLocation::Replica(OfReplica::VoteNotDurable),
        what: "a node says for whom it votes before that is on its disk",
        caught_by: &["P1", "P6", "P10"],
        seed: 54,
    },
    Mutant {
        name: "ack-before-sync",
        location: MutantLocation::Replica(OfReplica::AckBeforeSync),
        what: "a follower says that it has entries before they are on its disk",
        caught_by: &["P10"],
        seed: 1,
    },
    Mutant {
        name: "answer-by-index",
        location: MutantLocation::Replica(OfReplica::AnswerByIndex),
        what: "a batch is known by its place in the log alone, whoever's it is by now",
        caught_by: &["P1", "P2", "P7", "P10"],
        seed: 16,
    },
    Mutant {
        name: "follower-answers-check-token",
        location: MutantLocation::Replica(OfReplica::FollowerAnswersCheckToken),
        what: "a follower answers what a token is worth",
        caught_by: &["P2", "P6"],
        seed: 11,
    },
    Mutant {
        name: "dropped-batch-skipped",
        location: MutantLocation::Replica(OfReplica::DroppedBatchSkipped),
        what: "a batch that can't be proposed now is let go of",
        caught_by: &["P2", "P4", "P7", "P8", "P9"],
        seed: 21,
    },
    Mutant {
        name: "snapshot-goes-back",
        location: MutantLocation::Replica(OfReplica::SnapshotGoesBack),
        what: "a received snapshot takes the table's place though the consensus knows newer",
        caught_by: &["P1", "P2", "P10"],
        seed: 2,
    },
    Mutant {
        name: "ack-before-own-entry",
        location: MutantLocation::Replica(OfReplica::AckBeforeOwnEntry),
        what: "a new leader answers before its first own entry is applied",
        caught_by: &["P2", "P7", "P9", "P10"],
        seed: 0,
    },
    Mutant {
        name: "expiry-at-deadline",
        location: MutantLocation::Replica(OfReplica::ExpiryAtDeadline),
        what: "a session ends at its deadline, without the second step",
        caught_by: &["P9"],
        seed: 0,
    },
    Mutant {
        name: "tokens-from-one",
        location: MutantLocation::Replica(OfReplica::TokensFromOne),
        what: "tokens that a table before this one may have issued are issued again",
        caught_by: &["P2"],
        seed: 0,
    },
    Mutant {
        name: "members-applied-early",
        location: MutantLocation::Replica(OfReplica::MembersAppliedEarly),
        what: "a change of members counts before it is durable that it is committed",
        caught_by: &["P1", "P6", "P7", "P10"],
        seed: 6,
    },
    Mutant {
        name: "never-leaves-joint",
        location: MutantLocation::Replica(OfReplica::NeverLeavesJoint),
        what: "a removal that is half done stays so",
        caught_by: &["P7"],
        seed: 0,
    },
    Mutant {
        name: "rules-raised-unasked",
        location: MutantLocation::Replica(OfReplica::RulesRaisedUnasked),
        what: "newer rules of the table count though a member does not know them",
        caught_by: &["V1"],
        seed: 2,
    },
    Mutant {
        name: "resume-forgotten",
        location: MutantLocation::Replica(OfReplica::ResumeForgotten),
        what: "a leader leaves work that commands have left: waiters that could be granted wait on",
        caught_by: &["P4", "P7"],
        seed: 0,
    },
    Mutant {
        name: "turn-unbounded",
        location: MutantLocation::Replica(OfReplica::TurnUnbounded),
        what: "a turn applies all that is committed, however much that is",
        caught_by: &["M2"],
        seed: 7,
    },
    Mutant {
        name: "ends-told-at-once",
        location: MutantLocation::Replica(OfReplica::EndsToldAtOnce),
        what: "a client that attaches after a crowd of waits timed out is sent all ends at once",
        caught_by: &["R3"],
        seed: 22,
    },
    Mutant {
        name: "call-without-quorum",
        location: MutantLocation::Replica(OfReplica::CallWithoutQuorum),
        what: "a keep-alive by a call is acknowledged without asking a majority",
        caught_by: &["P5", "P6"],
        seed: 32,
    },
    Mutant {
        name: "grant-not-polled",
        location: MutantLocation::Replica(OfReplica::GrantNotPolled),
        what: "a grant does not answer the call that waits for the session's requests",
        caught_by: &["P7"],
        seed: 29,
    },
    Mutant {
        name: "secret-unchecked",
        location: MutantLocation::Replica(OfReplica::SecretUnchecked),
        what: "a call with a wrong secret is served",
        caught_by: &["P4"],
        seed: 3,
    },
    Mutant {
        name: "wiped-node-votes",
        location: MutantLocation::WipedNodeVotes,
        what: "a node whose disk is lost goes on under its old name: nobody looks at the incarnation",
        caught_by: &["P1", "P2", "P10"],
        seed: 17,
    },
    Mutant {
        name: "install-order-swapped",
        location: MutantLocation::InstallOrderSwapped,
        what: "the log is reset before the snapshot that takes its place has its name",
        caught_by: &["P10"],
        seed: 2,
    },
    Mutant {
        name: "grant-renews",
        location: MutantLocation::GrantRenews,
        what: "a grant is taken for an acknowledgement",
        caught_by: &["P4", "P5"],
        seed: 219,
    },
    Mutant {
        name: "clock-before-input",
        location: MutantLocation::ClockBeforeInput,
        what: "a node reads the clock first, then what has arrived while it did not run",
        caught_by: &["P4", "P5", "P9"],
        seed: 40,
    },
    Mutant {
        name: "sync-skipped",
        location: MutantLocation::SyncSkipped,
        what: "a write is called synced and was not",
        caught_by: &["P10"],
        seed: 2,
    },
    Mutant {
        name: "reply-before-sync",
        location: MutantLocation::ReplyBeforeSync,
        what: "an answer leaves before what it says is durable",
        caught_by: &["P10"],
        seed: 0,
    },
    Mutant {
        name: "deadline-from-receipt",
        location: MutantLocation::DeadlineFromReceipt,
        what: "the deadline counts from the acknowledgement's arrival",
        caught_by: &["P4", "P5"],
        seed: 0,
    },
    Mutant {
        name: "drift-beyond-margin",
        location: MutantLocation::DriftBeyondMargin,
        what: "clients' clocks are 5 % slow, the margin is 1 %",
        caught_by: &["P5"],
        seed: 462,
    },
    Mutant {
        name: "detach-unheard",
        location: MutantLocation::DetachUnheard,
        what: "the end of its stream does not shorten a client's lease deadline (linger)",
        caught_by: &["P5"],
        seed: 1,
    },
    Mutant {
        name: "retry-renumbered",
        location: MutantLocation::RetryRenumbered,
        what: "a command that is sent again gets a new number",
        caught_by: &["P2", "P4", "P7", "P8"],
        seed: 8,
    },
    Mutant {
        name: "loss-ignored",
        location: MutantLocation::LossIgnored,
        what: "a guard says held after its loss was signalled",
        caught_by: &["P4", "P5"],
        seed: 1,
    },
    Mutant {
        name: "drop-forgotten",
        location: MutantLocation::DropForgotten,
        what: "a dropped future leaves its request behind",
        caught_by: &["P7"],
        seed: 0,
    },
    Mutant {
        name: "token-reused",
        location: MutantLocation::TokenReused,
        what: "the sections of a cached hold share one token",
        caught_by: &["P2"],
        seed: 0,
    },
    Mutant {
        name: "recall-unheard",
        location: MutantLocation::RecallUnheard,
        what: "a section begins with a cached hold after it was recalled",
        caught_by: &["P8"],
        seed: 0,
    },
    Mutant {
        name: "cached-outlives-session",
        location: MutantLocation::CachedOutlivesSession,
        what: "a cached hold does not end with its session",
        caught_by: &["P4", "P5"],
        seed: 54,
    },
    Mutant {
        name: "queued-is-busy",
        location: MutantLocation::QueuedIsBusy,
        what: "a try is busy although the holder is idle",
        caught_by: &["C6", "P7"],
        seed: 13,
    },
    Mutant {
        name: "block-too-long",
        location: MutantLocation::Replica(OfReplica::BlockTooLong),
        what: "the block of a cached hold overlaps the next holder's token",
        caught_by: &["P2"],
        seed: 0,
    },
    Mutant {
        name: "recalled-forgotten",
        location: MutantLocation::Replica(OfReplica::RecalledForgotten),
        what: "a new leader does not tell a recall again",
        caught_by: &["C4"],
        seed: 29,
    },
    Mutant {
        name: "no-fence",
        location: MutantLocation::NoFence,
        what: "the resource takes any token",
        caught_by: &["P3"],
        seed: 5,
    },
    Mutant {
        name: "fence-without-enter",
        location: MutantLocation::FenceWithoutEnter,
        what: "only writes are checked: what was read before may be stale",
        caught_by: &["P3"],
        seed: 65,
    },
];

/// Finds a mutant by name.
#[must_use]
pub fn find(name: &str) -> Option<Mutant> {
    ALL.iter().find(|mutant| mutant.name == name).copied()
}
