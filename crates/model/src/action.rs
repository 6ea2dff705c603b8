//! The events of the model, and their descriptions.

use std::fmt;

/// One event. Leaders count from 0 (shown as A, B, C), streams from 1. A renewal is a keep-alive or an
/// attach, called a sign of life in `docs/lease-rules.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A quarter of a ttl passes. The leaders in the bit mask are stalled meanwhile.
    Tick { stalled: u8 },
    /// The client stamps and sends a renewal, which arrives at once.
    Send { stream: u8 },
    /// The client sends a renewal that is delayed for so long that its acknowledgement will not extend the
    /// client's lease.
    SendLate { stream: u8 },
    /// The client detects the end of its stream, or closes it.
    Hang,
    /// The client connects to a leader.
    Connect(u8),
    /// The client receives the message with which the service ended its stream.
    EndReceived,
    /// A delayed renewal arrives at its leader.
    Arrive { call: u8, leader: u8, stream: u8 },
    /// A delayed renewal is lost: it never arrives.
    Lose { call: u8, stream: u8 },
    /// The end of a stream arrives at its leader.
    EndArrives { stream: u8, leader: u8 },
    /// A middlebox closes a stream towards the leader only; the client does not notice.
    Middlebox(u8),
    /// A leader reads a renewal.
    Read { call: u8, leader: u8, stream: u8 },
    /// A leader reads that a stream was closed.
    ReadEnd { stream: u8, leader: u8 },
    /// A leader ends a stream itself, as it does when the stream was silent for too long.
    DropStream { stream: u8, leader: u8 },
    /// A leader begins a quorum read (a ReadIndex round).
    Ask(u8),
    /// A majority confirms the leader in its quorum read.
    Confirm(u8),
    /// The leader processes the confirmation, and acknowledges the renewals of the quorum read.
    Acknowledge(u8),
    /// A leader begins the second step of an expiry: the session has reached its deadline, or its stream was
    /// closed.
    BeginCheck(u8),
    /// A majority confirms the leader after the check began.
    ConfirmCheck(u8),
    /// All input that had arrived when the check began is read: the leader decides whether to propose the
    /// session's end.
    Decide(u8),
    /// The session's end is committed and applied.
    CommitEnd(u8),
    /// The next leader is elected, with or without the session's end in its log.
    Elect { leader: u8, inherits: bool },
    /// The first entry of the newest leader's own term is applied.
    FirstEntry(u8),
    /// A deposed leader learns that it is deposed.
    StepDown(u8),
    /// An operator breaks the hold.
    Break(u8),
    /// The leader opens the lock of the revoked hold.
    OpenRevoked(u8),
}

fn leader(number: u8) -> char {
    char::from(b'A' + number)
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tick { stalled } => {
                let standing: String = (0..8).filter(|bit| stalled >> bit & 1 == 1).map(leader).collect();
                let standing =
                    if standing.is_empty() { String::new() } else { format!(", {standing} stands still") };
                write!(f, "a tick{standing}")
            }
            Self::Send { stream } => write!(f, "client sends on stream {stream}"),
            Self::SendLate { stream } => write!(f, "client sends on stream {stream}, and it is delayed"),
            Self::Hang => write!(f, "client's stream ends"),
            Self::Connect(to) => write!(f, "client connects to {}", leader(to)),
            Self::EndReceived => write!(f, "client is told that its stream ended"),
            Self::Arrive { leader: at, stream, .. } => {
                write!(f, "what was sent on stream {stream} arrives at {}", leader(at))
            }
            Self::Lose { stream, .. } => write!(f, "what was sent on stream {stream} is lost"),
            Self::EndArrives { stream, leader: at } => {
                write!(f, "end of stream {stream} arrives at {}", leader(at))
            }
            Self::Middlebox(stream) => write!(f, "a middlebox closes stream {stream} towards the service"),
            Self::Read { leader: by, stream, .. } => write!(f, "{} reads stream {stream}", leader(by)),
            Self::ReadEnd { stream, leader: by } => {
                write!(f, "{} reads the end of stream {stream}", leader(by))
            }
            Self::DropStream { stream, leader: by } => {
                write!(f, "{} ends stream {stream} itself", leader(by))
            }
            Self::Ask(by) => write!(f, "{} begins a round", leader(by)),
            Self::Confirm(who) => write!(f, "a majority confirms {}", leader(who)),
            Self::Acknowledge(by) => write!(f, "{} acknowledges", leader(by)),
            Self::BeginCheck(by) => write!(f, "{} begins a check", leader(by)),
            Self::ConfirmCheck(who) => write!(f, "a majority confirms {} for the check", leader(who)),
            Self::Decide(by) => write!(f, "{} decides", leader(by)),
            Self::CommitEnd(by) => write!(f, "{} ends the session", leader(by)),
            Self::Elect { leader: who, inherits } => {
                let with = if inherits { ", with the session's end in its log" } else { "" };
                write!(f, "{} is elected{with}", leader(who))
            }
            Self::FirstEntry(of) => write!(f, "{} applies its first entry", leader(of)),
            Self::StepDown(who) => write!(f, "{} hears that it is deposed", leader(who)),
            Self::Break(by) => write!(f, "{} applies a break", leader(by)),
            Self::OpenRevoked(by) => write!(f, "{} opens the lock", leader(by)),
        }
    }
}
