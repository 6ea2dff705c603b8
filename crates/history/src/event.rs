//! The events of a history.
//!
//! Times are nanoseconds on the writer's clock, which its `writer` event names: `CLOCK_BOOTTIME` of a host
//! since its boot, unless a harness uses another.

/// One line of a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryLine {
    /// When the event was known to the writer: for an answer, after it had arrived.
    pub at: u64,
    /// The writer: a process, or a client of a harness. Unique in a history.
    pub by: String,
    /// What happened.
    pub event: HistoryEvent,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HistoryEvent {
    /// A writer begins.
    Writer(WriterEvent),
    /// What is known of another clock.
    Clock(ClockEvent),
    /// A lock was acquired.
    Granted(GrantedEvent),
    /// A hold has ended, for its client.
    Ended(EndedEvent),
    /// An exclusive hold has become a shared one.
    Downgraded(DowngradedEvent),
    /// An acquire has ended without a hold.
    Denied(DeniedEvent),
    /// A lock service was asked about a token.
    Status(StatusEvent),
    /// A lock service was asked who holds a lock.
    Listed(ListedEvent),
    /// A fence was asked to raise its mark.
    Entered(EnteredEvent),
    /// A fence's store was asked for its mark.
    Marked(MarkedEvent),
    /// A protected value was read.
    Read(ReadEvent),
    /// A protected value was replaced.
    Wrote(WroteEvent),
    /// A harness began or ended a fault.
    Fault(FaultEvent),
}

/// A writer's first event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriterEvent {
    /// [`FORMAT`](crate::FORMAT).
    pub format: u32,
    /// The clock of all its times. Two writers with the same clock can be compared to the nanosecond.
    pub clock: String,
    /// For people: program, host, process.
    pub label: String,
}

/// Bounds of another clock, measured by exchanging messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClockEvent {
    /// The other clock.
    pub other: String,
    /// The least that the other clock may be ahead of the writer's, in nanoseconds; negative: behind.
    pub ahead_min: i64,
    /// The most.
    pub ahead_max: i64,
}

/// How a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HoldMode {
    /// Alone.
    #[default]
    Exclusive,
    /// Together with other shared holds.
    Shared,
    /// One of several permits.
    Permit,
}

/// A permit: its number, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotOf {
    /// From 0.
    pub slot: u32,
    /// The number of permits.
    pub limit: u32,
}

/// A lock was acquired.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GrantedEvent {
    /// The hold's number, unique for its writer.
    pub hold: u64,
    /// The lock service: locks of different services exclude nobody from each other.
    pub service: String,
    /// The locks; several for one acquire of several names.
    pub locks: Vec<String>,
    /// The hold covers all names below its lock, too.
    pub subtree: bool,
    /// The mode.
    pub mode: HoldMode,
    /// The permit at each lock, in their order; empty in other modes, or if the service numbers none.
    pub slots: Vec<SlotOf>,
    /// The fencing token, if the service has them.
    pub token: Option<u64>,
    /// The client keeps the hold between its sections, each of which has a token of its own.
    pub cached: bool,
    /// Before the acquire was sent.
    pub asked: u64,
    /// When the acquire was certainly in a queue that grants in the order of arrival, and stayed there.
    pub queued: Option<u64>,
}

/// A hold has ended, for its client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedEvent {
    /// The hold.
    pub hold: u64,
    /// The last moment at which the client still counted on the hold: before it sent the release; at its
    /// deadline, or before it was told of its loss.
    pub until: u64,
    /// How.
    pub how: HoldEnd,
}

/// How a hold has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoldEnd {
    /// Its client released it.
    Released,
    /// Its client lost it.
    Lost,
}

/// An exclusive hold has become a shared one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DowngradedEvent {
    /// The hold.
    pub hold: u64,
    /// Before the change was sent.
    pub asked: u64,
}

/// An acquire has ended without a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeniedEvent {
    /// The lock service.
    pub service: String,
    /// The locks.
    pub locks: Vec<String>,
    /// Before the acquire was sent.
    pub asked: u64,
    /// Why: `busy`, `timed-out`, …
    pub why: String,
}

/// A lock service was asked about a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusEvent {
    /// The lock service.
    pub service: String,
    /// The lock.
    pub lock: String,
    /// The token.
    pub token: u64,
    /// Before the question was sent.
    pub asked: u64,
    /// The answer.
    pub answer: TokenAnswer,
}

/// What a lock service says of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenAnswer {
    /// It is that of a hold.
    Current,
    /// It was issued, and its hold has ended.
    NotCurrent,
    /// It is above all that were issued.
    NeverIssued,
}

/// A lock service was asked who holds a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedEvent {
    /// The lock service.
    pub service: String,
    /// The lock.
    pub lock: String,
    /// Before the question was sent.
    pub asked: u64,
    /// The tokens of all holds of the lock.
    pub tokens: Vec<u64>,
}

/// A fence's decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceVerdict {
    /// The token was accepted.
    Accepted,
    /// The token is older than the mark.
    Stale,
    /// There was no answer.
    Unknown,
}

/// A fence was asked to raise its mark, before the section reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnteredEvent {
    /// What the fence protects, unique in a history; for permits, with the slot.
    pub resource: String,
    /// The lock service of the token.
    pub service: String,
    /// The lock of the token.
    pub lock: String,
    /// The token.
    pub token: u64,
    /// Before the call.
    pub asked: u64,
    /// The fence's decision.
    pub verdict: FenceVerdict,
}

/// A fence's store was asked for its mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkedEvent {
    /// The resource, as in [`EnteredEvent`].
    pub resource: String,
    /// Before the question.
    pub asked: u64,
    /// The highest token that has passed for writing.
    pub token: u64,
}

/// A protected value was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadEvent {
    /// The resource.
    pub resource: String,
    /// Before the call.
    pub asked: u64,
    /// The version that was read: what the last write called its own.
    pub version: String,
}

/// A protected value was replaced: read, changed, written back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WroteEvent {
    /// The resource.
    pub resource: String,
    /// The lock service of the token.
    pub service: String,
    /// The lock of the token.
    pub lock: String,
    /// The token that the fence checked; none if there was no fence.
    pub token: Option<u64>,
    /// Before the call.
    pub asked: u64,
    /// The version that it replaces, as the section has read it.
    pub saw: String,
    /// The new version, unique for the resource.
    pub made: String,
    /// How the call ended.
    pub outcome: WriteOutcome,
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteOutcome {
    /// It was acknowledged.
    Done,
    /// The fence refused it.
    Stale,
    /// There was no answer: it may have been done, now or later.
    Unknown,
}

/// A harness began or ended a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultEvent {
    /// The kind, as `kill` or `cut`.
    pub fault: String,
    /// Whom it hits.
    pub target: String,
    /// Whether it begins.
    pub begins: bool,
}
