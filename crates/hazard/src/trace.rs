//! What a play leaves behind: what happened on each lane, in order.

use serde::Serialize;

use crate::settings::Settings;

/// A play, from its start to the resource's content at its end. Times are in milliseconds since the start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Trace {
    /// What was chosen.
    pub settings: Settings,
    /// What happened, in order.
    pub steps: Vec<Step>,
    /// What was sent between the lanes, in the order of sending.
    pub messages: Vec<Message>,
    /// States that last, in the order of their starts.
    pub spans: Vec<Span>,
    /// How it ended.
    pub outcome: PlayOutcome,
    /// When it ended.
    pub end_ms: u64,
}

/// A line of the picture.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// The client that the faults concern.
    A,
    /// The second client.
    B,
    /// The third one.
    C,
    /// The lock service.
    Locks,
    /// The resource: an account.
    Resource,
}

impl Lane {
    /// Its name, for people.
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

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Step {
    /// When.
    pub at_ms: u64,
    /// Where.
    pub lane: Lane,
    /// How it is shown.
    pub kind: StepKind,
    /// What, for people: a clause without its subject, which is the lane.
    pub text: String,
    /// The token that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// On a client's lane: what its program does from here on, if that changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// At the resource: its content afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
}

/// What kind of thing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepKind {
    /// Something ordinary.
    Ordinary,
    /// A fault begins or ends.
    Fault,
    /// A lock is granted.
    Granted,
    /// A lock or a session ends.
    Ended,
    /// The fence refused something.
    Refused,
    /// Data were damaged.
    Damage,
}

/// What a client's program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It has asked for the lock.
    Asks,
    /// It waits for the lock.
    Waits,
    /// It works under the lock.
    Holds,
    /// It gives the lock back.
    Releases,
    /// It has ended.
    Done,
    /// It has ended without success.
    GaveUp,
    /// Its process is dead.
    Dead,
}

/// The content of the resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Account {
    /// The balance.
    pub balance: i64,
    /// The fence's marks: the highest token that has passed, and the highest that has as a writer.
    pub highest: Option<u64>,
    /// The second of them.
    pub highest_writer: Option<u64>,
}

/// A message from one lane to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Message {
    /// Who sends it.
    pub from: Lane,
    /// Who gets it.
    pub to: Lane,
    /// When it is sent.
    pub sent_ms: u64,
    /// When it arrives.
    pub arrives_ms: u64,
    /// What it says.
    pub text: String,
    /// What it is for.
    pub kind: MessageKind,
}

/// What a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageKind {
    /// It opens, keeps alive or closes a session.
    Session,
    /// A request or release of a lock, or the answer.
    Lock,
    /// It reads from the resource.
    Read,
    /// It writes to the resource.
    Write,
    /// The resource's answer.
    Answer,
}

/// A state that lasts for some time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Span {
    /// Where.
    pub lane: Lane,
    /// What.
    pub kind: SpanKind,
    /// From when.
    pub from_ms: u64,
    /// Until when.
    pub to_ms: u64,
    /// The hold's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// At the lock service: whose hold it is.
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
    /// The lock service counts it as held.
    Held,
    /// The lock service keeps it closed: its holder is gone, but what it has sent may still be on its way.
    Closed,
    /// A process stands still.
    Paused,
    /// A process is dead.
    Dead,
    /// The network between a client and the lock service is cut.
    Cut,
}

/// How a play ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlayOutcome {
    /// In one word.
    pub verdict: DataVerdict,
    /// The balance at the end.
    pub balance: i64,
    /// The balance if no accepted withdrawal was lost.
    pub expected: i64,
    /// How often the fence has refused something.
    pub refused: u64,
    /// In a sentence.
    pub text: String,
}

/// Whether the data are as they must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataVerdict {
    /// They are.
    Kept,
    /// A withdrawal that the resource had accepted is lost.
    Lost,
    /// A reader saw the data change under its lock.
    Torn,
}
