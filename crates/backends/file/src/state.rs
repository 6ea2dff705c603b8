//! The content of a record: the table's snapshot and notes on its holds. Encoding and queries, no files.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_backend::BootInstant;
use lockkeeper_core::snapshot::{Phase, RequestState};
use lockkeeper_core::{LockName, ModeKind, Seq, SessionId, Slot, Snapshot, Token};

use super::os::boot_id;
use super::tag::Tag;

/// Incremented with every change of a record's layout.
const FORMAT: u8 = 2;
/// Data on a hold, in addition to the data that the table has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HoldNote {
    pub(super) boot: [u8; 16],
    /// When the hold began; for a closed hold, when it closed. Nanoseconds on the clock of `boot`.
    pub(super) at: u64,
    /// The token returned to the holder: for a request for several names, the highest of their tokens.
    pub(super) returned: u64,
}

impl HoldNote {
    pub(super) fn now(returned: u64) -> Self {
        Self { boot: boot_id(), at: BootInstant::now().as_nanos(), returned }
    }

    /// The time since `at`; `None` if that was before a reboot.
    pub(super) fn age(&self) -> Option<Duration> {
        (self.boot == boot_id()).then(|| BootInstant::now() - BootInstant::from_nanos(self.at))
    }
}

/// The content of a record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RecordState {
    pub(super) table: Snapshot,
    /// By the table's token.
    pub(super) notes: BTreeMap<u64, HoldNote>,
}

impl RecordState {
    pub(super) fn encode(&self, name: &LockName) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&(name.as_str().len() as u16).to_le_bytes());
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(&(self.notes.len() as u32).to_le_bytes());
        for (token, note) in &self.notes {
            bytes.extend_from_slice(&token.to_le_bytes());
            bytes.extend_from_slice(&note.boot);
            bytes.extend_from_slice(&note.at.to_le_bytes());
            bytes.extend_from_slice(&note.returned.to_le_bytes());
        }
        bytes.extend_from_slice(&self.table.encode());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<(LockName, Self), String> {
        fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Result<&'a [u8], String> {
            let (head, tail) = bytes.split_at_checked(n).ok_or("it is too short")?;
            *bytes = tail;
            Ok(head)
        }
        fn number(bytes: &mut &[u8]) -> Result<u64, String> {
            let head = take(bytes, 8)?;
            Ok(u64::from_le_bytes(std::array::from_fn(|i| head[i])))
        }
        let mut rest = bytes;
        let format = take(&mut rest, 1)?[0];
        if format != FORMAT {
            return Err(format!("it has format {format}, this program reads {FORMAT}"));
        }
        let length = take(&mut rest, 2)?;
        let name = take(&mut rest, usize::from(u16::from_le_bytes([length[0], length[1]])))?;
        let name = LockName::parse_bytes(name).map_err(|e| e.to_string())?;
        let count = take(&mut rest, 4)?;
        let mut notes = BTreeMap::new();
        for _ in 0..u32::from_le_bytes(std::array::from_fn(|i| count[i])) {
            let token = number(&mut rest)?;
            let boot = take(&mut rest, 16)?;
            let note = HoldNote {
                boot: std::array::from_fn(|i| boot[i]),
                at: number(&mut rest)?,
                returned: number(&mut rest)?,
            };
            notes.insert(token, note);
        }
        let table = Snapshot::decode(rest).map_err(|e| e.to_string())?;
        Ok((name, Self { table, notes }))
    }

    pub(super) fn session(&self, tag: Tag) -> Option<SessionId> {
        let hash = tag.to_hash();
        self.table.sessions.iter().find(|session| session.secret_hash == hash).map(|session| session.id)
    }

    pub(super) fn tag(&self, id: SessionId) -> Option<Tag> {
        let session = self.table.sessions.iter().find(|session| session.id == id)?;
        Some(Tag::from_hash(&session.secret_hash))
    }

    /// A session's description for operators: its label and, unless the label has it, its process id.
    pub(super) fn label(&self, id: SessionId) -> String {
        let Some(session) = self.table.sessions.iter().find(|session| session.id == id) else {
            return String::new();
        };
        let pid = Tag::from_hash(&session.secret_hash).pid().to_string();
        let mut words = session.label.split(|c: char| !c.is_ascii_digit());
        match &*session.label {
            "" => format!("pid {pid}"),
            label if words.any(|word| word == pid) => label.to_owned(),
            label => format!("{label} (pid {pid})"),
        }
    }

    pub(super) fn request(&self, tag: Tag, seq: Seq) -> Option<&RequestState> {
        let session = self.session(tag)?;
        self.table.requests.iter().find(|request| request.owner == Some((session, seq)))
    }

    /// The table's token of the hold whose holder got the token `returned`.
    pub(super) fn table_token(&self, returned: Token) -> Token {
        let found = self.notes.iter().find(|(_, note)| note.returned == returned.get());
        found.and_then(|(&token, _)| Token::new(token)).unwrap_or(returned)
    }

    /// The token returned to the holder for the hold that has this token in the table.
    pub(super) fn returned_token(&self, token: Token) -> Token {
        self.notes.get(&token.get()).and_then(|note| Token::new(note.returned)).unwrap_or(token)
    }

    /// The remaining time of a closed hold.
    pub(super) fn closed_left(&self, token: Token, ms: u64) -> Duration {
        let passed = self.notes.get(&token.get()).and_then(HoldNote::age).unwrap_or_default();
        Duration::from_millis(ms).saturating_sub(passed)
    }

    /// Every closed hold with its remaining time.
    pub(super) fn closed(&self) -> impl Iterator<Item = (Token, Duration)> {
        self.table.requests.iter().filter_map(|request| match request.phase {
            Phase::Closed { token, ms, .. } => Some((token, self.closed_left(token, ms))),
            _ => None,
        })
    }

    /// Whether the content must survive a power loss, because a hold is closed or will be closed after its
    /// end.
    pub(super) fn promises(&self) -> bool {
        let promise = |request: &RequestState| {
            request.keep_closed_ms > 0 || matches!(request.phase, Phase::Closed { .. })
        };
        self.table.requests.iter().any(promise)
    }

    /// The sessions that each waiter watches: the first waiter watches the holders that conflict with it,
    /// every other one only the waiter before it, so that one session's end does not wake all waiters.
    pub(super) fn watched(&self) -> BTreeMap<(SessionId, Seq), Vec<SessionId>> {
        let holders: Vec<(SessionId, ModeKind)> = self
            .table
            .requests
            .iter()
            .filter(|r| is_held(r))
            .filter_map(|r| Some((r.owner?.0, r.mode)))
            .collect();
        let mut watched = BTreeMap::new();
        let mut before = None;
        for request in &self.table.requests {
            let (Phase::Waiting { .. }, Some(owner)) = (&request.phase, request.owner) else { continue };
            let in_the_way = |mode: ModeKind| mode != ModeKind::Shared || request.mode != ModeKind::Shared;
            let whom = match before {
                Some(before) => vec![before],
                None => holders.iter().filter(|(_, mode)| in_the_way(*mode)).map(|(id, _)| *id).collect(),
            };
            watched.insert(owner, whom);
            before = Some(owner.0);
        }
        watched
    }
}

pub(super) fn is_held(request: &RequestState) -> bool {
    matches!(request.phase, Phase::Held { .. } | Phase::Revoked { .. })
}

/// Whether there are no holds, waiters, closed holds and limits.
pub(super) fn is_idle(state: &RecordState) -> bool {
    state.table.requests.is_empty() && state.table.limits.is_empty()
}

/// Slots in use by holds and closed holds.
pub(super) fn slots_of(table: &Snapshot) -> impl Iterator<Item = Slot> {
    table
        .requests
        .iter()
        .flat_map(|request| match &request.phase {
            Phase::Waiting { .. } => [].as_slice(),
            Phase::Held { slots, .. } | Phase::Revoked { slots, .. } | Phase::Closed { slots, .. } => slots,
        })
        .copied()
}

/// Decodes any bytes, for the fuzzer.
pub fn fuzz(bytes: &[u8]) {
    if let Ok((name, state)) = RecordState::decode(bytes) {
        assert_eq!(RecordState::decode(&state.encode(&name)), Ok((name, state)));
    }
}

/// A valid input of [`fuzz`].
pub fn fuzz_seed() -> Vec<u8> {
    let name = LockName::parse("orders/42").expect("a name");
    let notes = BTreeMap::from([(7, HoldNote { boot: [1; 16], at: 5, returned: 7 })]);
    RecordState { notes, ..RecordState::default() }.encode(&name)
}
