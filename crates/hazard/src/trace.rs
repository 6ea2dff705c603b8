//! The trace of a play: the events on each lane, in order. A *play* is one run of a story with certain
//! settings.

use serde::Serialize;

use crate::settings::Settings;

/// The trace of a play, from its start to its end. Times are in milliseconds since the start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Trace {
    /// The settings of the play.
    pub settings: Settings,
    /// The events, in order.
    pub steps: Vec<Step>,
    /// The messages between the lanes, in the order of sending.
    pub messages: Vec<Message>,
    /// States that last, in the order of their starts.
    pub spans: Vec<Span>,
    /// The outcome of the play.
    pub outcome: PlayOutcome,
    /// The time of the play's end.
    pub end_ms: u64,
}

/// A participant; drawn as one line of the picture.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// The client that the faults concern.
    A,
    /// The second client.
    B,
    /// The third client.
    C,
    /// The lock service.
    Locks,
    /// The resource: an account.
    Resource,
}

impl Lane {
    /// The name of the lane, for display.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::Locks => "locks",
            Self::Resource => "account",
        }
    }
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Step {
    /// The time of the event.
    pub at_ms: u64,
    /// The participant that the event happens to.
    pub lane: Lane,
    /// The kind of the event; determines how it is drawn.
    pub kind: StepKind,
    /// The description for display: a clause without its subject, which is the lane.
    pub text: String,
    /// The token that the event concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// On a client's lane: the phase that its program enters with this event, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// On the resource's lane: its content after the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
}

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepKind {
    /// An ordinary event.
    Ordinary,
    /// A fault begins or ends.
    Fault,
    /// A lock is granted.
    Granted,
    /// A lock or a session ends.
    Ended,
    /// The fence refused a request.
    Refused,
    /// Data were damaged.
    Damage,
}

/// The phase of a client's program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The program has sent its request for the lock.
    Asks,
    /// The program waits for the lock.
    Waits,
    /// The program works under the lock.
    Holds,
    /// The program releases the lock.
    Releases,
    /// The program has ended normally.
    Done,
    /// The program has ended without success.
    GaveUp,
    /// The program's process is dead.
    Dead,
}

/// The content of the resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Account {
    /// The balance.
    pub balance: i64,
    /// The fence's mark `any`: the highest token that has passed.
    pub highest: Option<u64>,
    /// The fence's mark `writer`: the highest token that has passed as a writer.
    pub highest_writer: Option<u64>,
}

/// A message from one lane to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Message {
    /// The sender.
    pub from: Lane,
    /// The receiver.
    pub to: Lane,
    /// The time of sending.
    pub sent_ms: u64,
    /// The time of arrival.
    pub arrives_ms: u64,
    /// The content, for display.
    pub text: String,
    /// The purpose of the message.
    pub kind: MessageKind,
}

/// The purpose of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageKind {
    /// Opens, keeps alive or closes a session.
    Session,
    /// A request or release of a lock, or the answer.
    Lock,
    /// Reads from the resource.
    Read,
    /// Writes to the resource.
    Write,
    /// The resource's answer.
    Answer,
}

/// A state that lasts for some time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Span {
    /// The participant that is in this state.
    pub lane: Lane,
    /// The kind of state.
    pub kind: SpanKind,
    /// The start of the state.
    pub from_ms: u64,
    /// The end of the state.
    pub to_ms: u64,
    /// The hold's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// On the lock service's lane: the client that has the hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Lane>,
}

/// A state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpanKind {
    /// A client believes that it holds the lock.
    Believes,
    /// A client waits for the lock.
    Waits,
    /// The lock service counts the lock as held.
    Held,
    /// The lock service keeps the lock closed: the holder is gone, but messages that it sent may still
    /// arrive.
    Closed,
    /// A process is paused.
    Paused,
    /// A process is dead.
    Dead,
    /// The network between a client and the lock service is cut.
    Cut,
}

/// The outcome of a play.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlayOutcome {
    /// The outcome in one word.
    pub verdict: DataVerdict,
    /// The balance at the end.
    pub balance: i64,
    /// The balance if no accepted withdrawal was lost.
    pub expected: i64,
    /// The number of requests that the fence refused.
    pub refused: u64,
    /// The outcome in a sentence.
    pub text: String,
}

/// Whether the resource's data are correct.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataVerdict {
    /// The data are correct.
    Kept,
    /// A withdrawal that the resource had accepted is lost.
    Lost,
    /// A reader saw the data change under its lock.
    Torn,
}
